"""Until when an owner holds the blocks that a reader reads, as far as the reader can know.

The owner says it at the start; from then on only the reader's own heartbeats make it longer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TypeGuard, cast

from contraflow.core.transfer_params import HOLD_EXTENSION, HOLD_UNTIL, Params

Lease = tuple[str, str]
"""Engine id of the owner, and the request whose blocks it holds."""

_CLOCK_MARGIN = 0.5
"""Seconds by which the clocks of reader and owner may be off."""
_MOST_OF_THE_WAY = 0.25
"""Share of the extension that a heartbeat may be on its way, and still find its lease alive."""
_MOST_SECONDS = 1e12
"""No clock shows more."""
_LEAST_APART = 0.25
"""Seconds; more heartbeats than that make nothing longer."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Held until an instant on the owner's clock. A heartbeat makes it ``extension`` seconds
    from its receipt, if it comes while the hold lasts and that is later."""

    until: float
    extension: float = 0.0

    @classmethod
    def of(cls, params: Params) -> Hold | None:
        """What the owner's parameters say; None if they say nothing."""
        until, extension = params.get(HOLD_UNTIL), params.get(HOLD_EXTENSION, 0.0)
        if not _is_number(until) or not _is_number(extension):
            return None
        return cls(float(until), float(extension))

    def to_params(self) -> Params:
        """As ``of`` reads it."""
        return {HOLD_UNTIL: self.until, HOLD_EXTENSION: self.extension}

    def after(self, heartbeats: Iterable[float], error: float = 0.0) -> float:
        """Until when it lasts, with heartbeats that were sent then; on the owner's clock, give or
        take ``error`` seconds.

        One that may have come too late counts for nothing, and so do those that it would have
        kept the hold alive for.
        """
        until = self.until
        for sent in heartbeats:
            if sent + error + self.extension * _MOST_OF_THE_WAY < until:
                until = max(until, sent - error + self.extension)
        return until


class Heartbeats:
    """When a reader sent which; on its own clock, in seconds."""

    def __init__(self) -> None:
        self._sent: dict[Lease, list[float]] = {}

    def sent(self, leases: Iterable[Lease], now: float) -> None:
        """A heartbeat for each has left, not before ``now``."""
        for lease in leases:
            times = self._sent.setdefault(lease, [])
            if not times or now - times[-1] >= _LEAST_APART:
                times.append(now)

    def keep(self, leases: Collection[Lease]) -> None:
        """Forget all others."""
        self._sent = {lease: times for lease, times in self._sent.items() if lease in leases}

    def prolong(self, hold: Hold, lease: Lease, offset: float, error: float = 0.0) -> float:
        """Until when the hold on a lease lasts, on the owner's clock, which is ``offset`` seconds
        ahead of the reader's, give or take ``error``."""
        return hold.after((sent + offset for sent in self._sent.get(lease, ())), error)


def ends_late(owner_now: float, hold_until: float) -> bool:
    """Whether a read that ends now may have seen blocks that its owner no longer held."""
    return owner_now + _CLOCK_MARGIN >= hold_until


def _is_number(value: object) -> TypeGuard[float]:
    # JSON as engines read it has NaN, which no instant is later than, and integers without end.
    return type(value) in (int, float) and abs(cast("float", value)) < _MOST_SECONDS
