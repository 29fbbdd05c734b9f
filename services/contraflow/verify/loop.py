"""An event loop whose time is a number: it jumps to the next timer when nothing can run."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Args = TypeVarTuple("Args")

_MOST_CALLS = 1_000_000  # at one instant; runs have some thousands


class Stuck(Exception):
    """Time does not go on: nothing can run and no timer is set, or something runs for ever."""


class _Call(asyncio.TimerHandle):
    # Without what is for threads and debugging.

    __slots__ = ("at", "todo", "within")

    def __init__(self, todo: Callable[..., object], within: Context | None, at: float) -> None:
        self.todo: Callable[..., object] | None = todo
        self.within = copy_context() if within is None else within
        self.at = at

    def cancel(self) -> None:
        self.todo = None

    def cancelled(self) -> bool:
        return self.todo is None

    def when(self) -> float:
        return self.at


class VirtualLoop(asyncio.BaseEventLoop):
    """Single-threaded and without I/O, so that a run depends on nothing but its input.

    asyncio's own loop polls its files between any two steps and compares timers in Python: about
    a quarter of the time of a simulated turn.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._stopped = False
        self._numbers = 0
        self._calls: deque[tuple[_Call, tuple[Any, ...]]] = deque()
        self._timers: list[tuple[float, int, _Call, tuple[Any, ...]]] = []

    def time(self) -> float:
        """Virtual seconds since the start."""
        return self._now

    def call_soon(
        self, callback: Callable[[Unpack[Args]], object], *args: *Args,
        context: Context | None = None,
    ) -> asyncio.Handle:  # fmt: skip
        """As asyncio's."""
        call = _Call(callback, context, self._now)
        self._calls.append((call, args))
        return call

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Args]], object], *args: *Args,
        context: Context | None = None,
    ) -> asyncio.Handle:  # fmt: skip
        """There is no other thread."""
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Args]], object], *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:  # fmt: skip
        """As asyncio's."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Args]], object], *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:  # fmt: skip
        """As asyncio's, but those of one instant are called in the order of their setting."""
        call = _Call(callback, context, when)
        self._numbers += 1
        heapq.heappush(self._timers, (when, self._numbers, call, args))
        return call

    def stop(self) -> None:
        """As asyncio's."""
        self._stopped = True
        super().stop()

    def _run_once(self) -> None:
        self._stopped = False
        calls, left = self._calls, _MOST_CALLS
        while calls and not self._stopped:
            self._run(*calls.popleft())
            left -= 1
            if not left:
                raise Stuck("something runs without end and without taking time")
        if not self._stopped:
            self._jump()

    def _run(self, call: _Call, args: tuple[Any, ...]) -> None:
        if (todo := call.todo) is None:
            return
        try:
            call.within.run(todo, *args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self.call_exception_handler({"message": f"in {todo}", "exception": error})

    def _jump(self) -> None:
        timers = self._timers
        while timers and timers[0][2].todo is None:
            heapq.heappop(timers)
        if not timers:
            raise Stuck("everything waits for something that never comes")
        self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            _, _, call, args = heapq.heappop(timers)
            self._calls.append((call, args))


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
