"""What came of the turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TurnId:
    """Which turn. Turns count from 1 along their branch's whole history; branch 0 is the trunk."""

    conversation: int
    branch: int
    turn: int


@dataclass(frozen=True, slots=True)
class Sample:
    """A turn that was answered to its end.

    Seconds count from the request: to the first token, to the end. ``tpot`` is seconds per token
    after the first, None if there is but one. ``prompt_tokens`` and ``cached_tokens`` are
    the usage's, None where the endpoint tells none; ``report`` is the ``x-contraflow`` header.
    """

    leg: str
    turn: TurnId
    prompt_tokens: int | None
    output_tokens: int
    ttft: float
    tpot: float | None
    e2e: float
    cached_tokens: int | None = None
    report: Mapping[str, str] = field(default_factory=dict)

    def told(self, name: str) -> float | None:
        """A number of the report; None if it has no such one."""
        try:
            return float(self.report[name])
        except (KeyError, ValueError):
            return None

    def prefill_seconds(self) -> tuple[float, float] | None:
        """The prefill leg's, and those of them that a pull took, 0 without one; None if the
        report does not tell."""
        whole = self.told("prefill_s")
        return None if whole is None else (whole, self.told("pull_s") or 0.0)


@dataclass(frozen=True, slots=True)
class Failure:
    """A turn that failed; ``lost`` later ones hung on it and were not sent."""

    leg: str
    turn: TurnId
    error: str
    lost: int


@dataclass(slots=True)
class Results:
    """All that is known so far."""

    samples: list[Sample] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def of(self, leg: str) -> Iterator[Sample]:
        """The answered turns of a leg."""
        return (sample for sample in self.samples if sample.leg == leg)
