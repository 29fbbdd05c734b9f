"""The frame of a command that starts processes: signals, errors, exit status."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable

from contraflow.cli.deployment.errors import DeploymentError
from contraflow.runtime.config import ConfigError
from contraflow.runtime.supervise import EXIT_CONFIG

EXIT_FAILED = 1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_command(main: Callable[[], Awaitable[int]]) -> int:
    """Run ``main`` to its end; its result is the exit status.

    SIGINT, SIGTERM and SIGHUP cancel it, so that its contexts are left in order; a second one
    cancels the leaving as well, which ends child processes at once. Errors that a person can
    do something about are told without a traceback.
    """
    try:
        return asyncio.run(_cancelled_by_signals(main))
    except ConfigError as error:
        print(f"contraflow: {error}", file=sys.stderr)
        return EXIT_CONFIG
    except DeploymentError as error:
        print(f"contraflow: {error}", file=sys.stderr)
        return EXIT_FAILED


async def _cancelled_by_signals(main: Callable[[], Awaitable[int]]) -> int:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(main())
    received: list[signal.Signals] = []

    def cancel(number: signal.Signals) -> None:
        received.append(number)
        task.cancel()

    for number in _SIGNALS:
        loop.add_signal_handler(number, cancel, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            raise
        return 128 + received[0]
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
