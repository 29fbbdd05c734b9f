"""A clock that stands still until it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager


class ManualClock:
    """Satisfies ``contraflow.runtime.clock.Clock``; sleepers wake when ``advance`` passes
    their instant."""

    def __init__(self, now: float = 1000.0, wall_ms: int = 1_700_000_000_000) -> None:
        self._now = now
        self._wall_ms = wall_ms
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []
        self._armed = asyncio.Condition()

    def now(self) -> float:
        return self._now

    def wall_ms(self) -> int:
        return self._wall_ms

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        await (await self._sleeper(seconds))

    @asynccontextmanager
    async def timeout(self, seconds: float) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(None if seconds > 0 else 0) as limit:

            def late(woken: asyncio.Future[None]) -> None:
                if not woken.cancelled():
                    limit.reschedule(loop.time())

            woken = await self._sleeper(seconds)
            woken.add_done_callback(late)
            try:
                yield
            finally:
                woken.cancel()

    async def _sleeper(self, seconds: float) -> asyncio.Future[None]:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._now + seconds, woken))
        async with self._armed:
            self._armed.notify_all()
        return woken

    async def wait_for_sleepers(self, count: int = 1) -> None:
        """Return once at least ``count`` tasks sleep on this clock."""
        async with self._armed:
            await self._armed.wait_for(lambda: len(self._pending()) >= count)

    def advance(self, seconds: float) -> None:
        """Move on and wake whoever is due."""
        self._now += seconds
        self._wall_ms += round(seconds * 1000)
        for due, woken in self._pending():
            if due <= self._now:
                woken.set_result(None)

    def advance_to_next(self) -> bool:
        """Move on to when the next sleeper is due; False if nobody sleeps."""
        due = min((due for due, _ in self._pending()), default=None)
        if due is not None:
            self.advance(max(0.0, due - self._now))
        return due is not None

    def _pending(self) -> list[tuple[float, asyncio.Future[None]]]:
        self._sleepers = [entry for entry in self._sleepers if not entry[1].done()]
        return self._sleepers


class SkewedClock:
    """Another process's view of ``clock``: both its instants and its wall clock are ``seconds``
    ahead."""

    def __init__(self, clock: ManualClock, seconds: float) -> None:
        self._clock = clock
        self._ahead = seconds

    def now(self) -> float:
        return self._clock.now() + self._ahead

    def wall_ms(self) -> int:
        return self._clock.wall_ms() + round(self._ahead * 1000)

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[None]:
        return self._clock.timeout(seconds)
