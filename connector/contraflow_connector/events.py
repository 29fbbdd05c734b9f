"""What the worker halves tell the scheduler half, once per engine step."""

from __future__ import annotations

from dataclasses import dataclass, field

from contraflow.core.handle import State


@dataclass(frozen=True, slots=True)
class Transfer:
    """One rank's finished pull. Seconds of the transfer itself."""

    request_id: str
    bytes: int
    descriptors: int
    seconds: float


@dataclass(slots=True)
class WorkerEvents:
    """Ends of sends by request id, finished pulls, and new deadlines that a rank holds to, as
    the scheduler half gave them."""

    ends: list[tuple[str, State]] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    renewed: list[tuple[str, float]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.ends or self.transfers or self.renewed)

    def merged(self, other: WorkerEvents) -> WorkerEvents:
        """Both ranks' events."""
        return WorkerEvents(
            self.ends + other.ends,
            self.transfers + other.transfers,
            self.renewed + other.renewed,
        )
