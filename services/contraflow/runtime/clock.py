"""Time as a value one is given. Services take a ``Clock``; the core takes ``now``."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager, suppress
from typing import Protocol


class Clock(Protocol):
    """A source of time. Instants of ``now`` mean nothing outside this process."""

    def now(self) -> float:
        """Monotonic seconds."""
        ...

    def wall_ms(self) -> int:
        """Wall-clock milliseconds since the epoch; informational, it may jump."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return once ``now`` has advanced by ``seconds``."""
        ...

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[object]:
        """As ``asyncio.timeout``: what takes longer is cancelled, and TimeoutError raised."""
        ...


class SystemClock:
    """The clock of the operating system."""

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def wall_ms(self) -> int:
        """Wall-clock milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    async def sleep(self, seconds: float) -> None:
        """Sleep on the running event loop."""
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[object]:
        """By the running event loop."""
        return asyncio.timeout(seconds)


async def happens(event: asyncio.Event, clock: Clock, within: float) -> bool:
    """Wait for an event, at most for ``within`` seconds; whether it is set."""
    with suppress(TimeoutError):
        async with clock.timeout(within):
            await event.wait()
    return event.is_set()
