"""``contraflow wait-engine``: when a unit of systemd may call its engine started."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

from contraflow.engine.health import is_healthy
from contraflow.runtime.clock import Clock, SystemClock

_HEALTH_TIMEOUT = 5.0  # seconds
_PAUSE = 1.0  # seconds


class EngineNotStarted(Exception):
    """The engine ended, or took too long. The text says which, and where to look."""


def run(endpoint: str, within: float, pid: int | None) -> int:
    """Wait until the engine answers; the exit status, 1 with one line on stderr if it does not."""
    wait = until_started(endpoint, within, SystemClock(), runs=lambda: pid is None or _exists(pid))
    try:
        asyncio.run(wait)
    except EngineNotStarted as error:
        print(f"contraflow: {error}", file=sys.stderr)
        return 1
    return 0


async def until_started(
    endpoint: str, within: float, clock: Clock, runs: Callable[[], bool]
) -> None:
    """Return once ``GET {endpoint}/health`` is answered with 200.

    Raises EngineNotStarted after ``within`` seconds, or as soon as the engine no longer ``runs``.
    """
    deadline = clock.now() + within
    while not await is_healthy(endpoint, _HEALTH_TIMEOUT):
        if not runs():
            raise EngineNotStarted("the engine has ended while it started; its log says why")
        if clock.now() >= deadline:
            raise EngineNotStarted(
                f"{endpoint}/health is not answered with 200 after {within:g} s; the engine's log"
                " says what it is busy with; --within gives it longer"
            )
        await clock.sleep(_PAUSE)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
