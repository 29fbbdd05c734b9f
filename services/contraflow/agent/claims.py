"""What the agent remembers of claims: who still wants them.

Pure. A grant that nobody is left to take is given back, for no byte of a prefill can have
been sent for it. One that was handed to a router is never given back on our own account.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from contraflow.core.handle import ClaimRequest

_KEPT_AFTER_HOLD = 60.0  # seconds; an engine may be late in ending a claim


@dataclass(slots=True, eq=False)
class ClaimRecord:
    """One claim id at one engine. ``over_at``: it has ended there, whatever was heard."""

    claim_id: str
    over_at: float
    waiting: int = 0
    in_flight: int = 0
    possible: bool = False
    """The engine may hold the claim: it said so, or its answer was lost."""
    delivered: bool = False
    """A router was given the grant, and may be reading."""

    @property
    def abandoned(self) -> bool:
        """True if nobody waits for the claim, nobody was given it and no answer is due."""
        return not (self.waiting or self.in_flight or self.delivered)


class ClaimBook:
    """Claims of one engine, by claim id."""

    def __init__(self) -> None:
        self._records: dict[str, ClaimRecord] = {}
        self._foreign: set[str] = set()

    def __len__(self) -> int:
        return len(self._records) + len(self._foreign)

    def open(self, request: ClaimRequest, now: float) -> ClaimRecord:
        """The record of a claim that is about to be asked for, perhaps once more."""
        self._forget_old(now)
        record = self._records.get(request.claim_id)
        if record is None:
            # An earlier agent process may have handed a claim of its time to a router.
            record = ClaimRecord(
                request.claim_id,
                over_at=now + request.start_by + request.max_read,
                delivered=request.claim_id in self._foreign,
            )
            self._records[request.claim_id] = record
        return record

    def proven_unread(self, claim_id: str) -> None:
        """A router gives the claim back. Should the order be lost, it is repeated."""
        if record := self._records.get(claim_id):
            record.delivered = False

    def discard(self, record: ClaimRecord) -> None:
        """The engine holds no such claim. One that is being asked for anew stays."""
        if not (record.waiting or record.in_flight) and (
            self._records.get(record.claim_id) is record
        ):
            del self._records[record.claim_id]

    def ended(self, claim_id: str) -> None:
        """The engine says that the claim has ended."""
        self._foreign.discard(claim_id)
        if record := self._records.get(claim_id):
            self.discard(record)

    def reconcile(self, claim_ids: Iterable[str]) -> list[ClaimRecord]:
        """All live claims of the engine, as a new link tells. Returns those to give back."""
        alive = set(claim_ids)
        for record in list(self._records.values()):
            if record.claim_id not in alive:
                self.discard(record)
        self._foreign = alive - self._records.keys()
        return [
            record
            for record in self._records.values()
            if record.claim_id in alive and record.abandoned
        ]

    def _forget_old(self, now: float) -> None:
        while self._records:
            oldest = next(iter(self._records.values()))  # they are in order of their sending
            if oldest.over_at + _KEPT_AFTER_HOLD > now:
                return
            del self._records[oldest.claim_id]
