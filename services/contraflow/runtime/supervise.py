"""The life of a process: from configuration errors to signals to exit status."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from contraflow.runtime.config import ConfigError

EXIT_CONFIG = 2
"""Exit status for whatever ConfigError says."""

Loop = Coroutine[Any, Any, Any]


def run_service(main: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run ``main()`` on uvloop to its end; returns the exit status.

    ConfigError, also out of a TaskGroup, is one line on stderr and EXIT_CONFIG. Other
    exceptions propagate.
    """
    return exit_on_config_error(lambda: uvloop.run(main()))


def exit_on_config_error(action: Callable[[], object]) -> int:
    """Perform ``action``: 0, or EXIT_CONFIG after one line on stderr."""
    try:
        action()
    except (ConfigError, BaseExceptionGroup) as error:
        config_error = _first_config_error(error)
        if config_error is None:
            raise
        print(f"contraflow: {' '.join(str(config_error).split())}", file=sys.stderr)
        return EXIT_CONFIG
    return 0


async def run_until_signal(
    *loops: Loop,
    stop: asyncio.Event | None = None,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Run endless ``loops`` side by side until SIGINT, SIGTERM or ``stop``; then cancel them.

    ``ready`` is called once signals are minded: announce the service there, so that nobody
    can end it before it would end well. The first exception of any loop ends all, and is
    raised in an ExceptionGroup.
    """
    stop = stop or asyncio.Event()
    running = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        running.add_signal_handler(number, stop.set)
    try:
        ready()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(loop) for loop in loops]
            await stop.wait()
            for task in tasks:
                task.cancel()
    finally:
        for number in signals:
            running.remove_signal_handler(number)


def notify_ready() -> None:
    """Tell systemd, if it started us with Type=notify, that we serve."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.connect("\0" + path[1:] if path.startswith("@") else path)
        channel.send(b"READY=1")


def _first_config_error(error: BaseException) -> ConfigError | None:
    if isinstance(error, ConfigError):
        return error
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            if found := _first_config_error(inner):
                return found
    return None
