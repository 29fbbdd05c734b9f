"""An event loop whose time is a number: it jumps to the next timer when nothing can run."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


_MOST_ROUNDS = 100_000  # of the loop at one instant; runs have some hundreds


class Stuck(Exception):
    """Time does not go on: nothing can run and no timer is set, or something runs for ever."""


class _Jump(selectors.BaseSelector):
    """Has no files. To wait for them is to let the time pass."""

    def __init__(self) -> None:
        self.now = 0.0
        self._rounds = 0

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, 0, None)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck("everything waits for something that never comes")
        self._rounds = self._rounds + 1 if timeout <= 0 else 0
        if self._rounds > _MOST_ROUNDS:
            raise Stuck("something runs without end and without taking time")
        self.now += max(0.0, timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {}


class VirtualLoop(asyncio.SelectorEventLoop):
    """Single-threaded and without I/O, so that a run depends on nothing but its input."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        """Virtual seconds since the start."""
        return self._jump.now

    def _write_to_self(self) -> None:
        pass  # there is no other thread to be woken from


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` to its end in virtual time. Raises Stuck if it can never end."""
    loop = VirtualLoop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        _end_all(loop)
        asyncio.set_event_loop(None)
        loop.close()


def _end_all(loop: asyncio.AbstractEventLoop) -> None:
    # Of a run that got stuck; others leave nothing.
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    with suppress(Stuck):
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
