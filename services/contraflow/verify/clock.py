"""Clocks that agree on how long a second is, and on nothing else."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager

_TICK = 1e-6  # seconds


class PartClock:
    """The clock of one machine: ``offset`` seconds from the world's, its wall another story."""

    def __init__(self, offset: float = 0.0, wall_offset: float = 0.0) -> None:
        self.offset = offset
        self.wall_offset = wall_offset

    def now(self) -> float:
        """Monotonic seconds."""
        return asyncio.get_running_loop().time() + self.offset

    def wall_ms(self) -> int:
        """Wall-clock milliseconds."""
        seconds = asyncio.get_running_loop().time() + self.wall_offset
        return 1_800_000_000_000 + round(seconds * 1000)

    async def sleep(self, seconds: float) -> None:
        """Until ``now`` has advanced by that."""
        # A shorter sleep could be lost in the rounding of ``now``, and be asked for without end.
        await asyncio.sleep(max(seconds, _TICK) if seconds > 0 else 0)

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[object]:
        """For that long."""
        return asyncio.timeout(max(seconds, _TICK))
