"""The life of a process: from configuration errors to signals to exit status, and what
systemd hears of it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
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

    async def watched() -> None:
        # Around all of main: a service that drains lives on, and has to say so.
        watchdog = asyncio.create_task(feed_watchdog(asyncio.sleep))
        try:
            await main()
        finally:
            watchdog.cancel()

    return exit_on_config_error(lambda: uvloop.run(watched()))


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
            _notify("STOPPING=1", "STATUS=stopping")
            for task in tasks:
                task.cancel()
    finally:
        for number in signals:
            running.remove_signal_handler(number)


def notify_ready(status: str) -> None:
    """Tell systemd, if it started us with Type=notify, that we serve.

    ``status`` is the line that ``systemctl status`` shows.
    """
    _notify("READY=1", f"STATUS={status}")


async def feed_watchdog(sleep: Callable[[float], Awaitable[None]]) -> None:
    """Tell systemd's watchdog twice in each of its periods that this event loop turns.

    Returns at once if there is no watchdog (WatchdogSec=), else never.
    """
    period = _watchdog_seconds()
    while period:
        _notify("WATCHDOG=1")
        await sleep(period / 2)


def _watchdog_seconds() -> float:
    me = str(os.getpid())
    meant = os.environ.get("WATCHDOG_PID", me) == me
    return int(os.environ.get("WATCHDOG_USEC", "0")) / 1e6 if meant else 0.0


def _notify(*assignments: str) -> None:
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    # What does not get through neither holds up the loop nor ends it: systemd minds what it misses.
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel, suppress(OSError):
        channel.setblocking(False)
        channel.connect("\0" + path[1:] if path.startswith("@") else path)
        channel.send("\n".join(assignments).encode())


def _first_config_error(error: BaseException) -> ConfigError | None:
    if isinstance(error, ConfigError):
        return error
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            if found := _first_config_error(inner):
                return found
    return None
