"""What has happened, and what of it must not: the model of ``contraflow verify``, held against
turns of real processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from contraflow.cli.deployment import MODEL_NAME
from contraflow.core.handle import LIVE, State
from contraflow.verify.client import Outcome
from contraflow.verify.reference import generate
from tests.ring.layout import ENGINES, SPEC


@dataclass(frozen=True)
class Harm:
    """What was done to a part, and when; on the clock of the turns."""

    what: str
    part: str
    began: float
    ended: float


@dataclass(eq=False)
class Turn:
    """One turn as its client saw it. ``tokens``: how many were asked for."""

    conversation: str
    number: int
    router: str
    prompt: list[int]
    tokens: int
    began: float
    ended: float
    outcome: Outcome

    @property
    def report(self) -> Mapping[str, str]:
        """The router's."""
        return self.outcome.report

    @cached_property
    def expected(self) -> list[int]:
        """What the model alone generates."""
        return generate(self.prompt, self.tokens, MODEL_NAME, SPEC.block_size)

    @property
    def good(self) -> bool:
        """Whether it has ended as it should."""
        outcome = self.outcome
        return outcome.status == 200 and outcome.whole and outcome.ids == self.expected

    @property
    def pulled(self) -> bool:
        """Whether blocks were reused."""
        return self.good and self.report.get("outcome") == "PULLED"

    @property
    def denied(self) -> str:
        """Why a claim was not granted."""
        return self.report.get("denial", "")

    def was_served_by(self, part: str) -> bool:
        """Whether this router had the turn, or this engine one of its legs."""
        if part in ENGINES:
            legs = (self.report.get("prefill", ""), self.report.get("decode", ""))
            return any(engine.startswith(f"{part}-") for engine in legs)
        return part == self.router

    def __str__(self) -> str:
        outcome = self.outcome
        return (
            f"turn {self.number} of {self.conversation} through {self.router}, "
            f"{self.began:.2f} to {self.ended:.2f}: {outcome.status} {outcome.error} {self.report}"
        )


@dataclass
class History:
    """``handles``: the states that agents have told of each handle, in order."""

    turns: list[Turn] = field(default_factory=list)
    handles: dict[str, list[State]] = field(default_factory=dict)

    def violations(
        self, harms: Sequence[Harm], router_turns: Iterable[Mapping[str, Any]]
    ) -> list[str]:
        """What must not be. ``router_turns`` are the routers' own records."""
        return [
            *self._turns(harms),
            *self._lives(),
            *_read_twice(router_turns),
        ]

    def _turns(self, harms: Sequence[Harm]) -> Iterator[str]:
        for turn in self.turns:
            outcome = turn.outcome
            if outcome.ids != turn.expected[: len(outcome.ids)]:
                yield f"NEVER_WRONG: {outcome.ids} for {turn.expected}: {turn}"
            if outcome.prompt not in ([], turn.prompt):
                yield f"NEVER_WRONG: another prompt: {turn}"
            if outcome.hung:
                yield f"NEVER_HANGS: {turn}"
            elif not turn.good and not _excused(turn, harms):
                yield f"NEVER_FAILS: {turn}"
            if outcome.leaked:
                yield f"CLIENT_PARAMS: {turn}"

    def _lives(self) -> Iterator[str]:
        for handle, states in self.handles.items():
            ends = [state for state in states if state not in LIVE]
            # An agent that comes anew hears of the handle once more, but not of its end.
            if len(ends) > 1 or (ends and states[-1] in LIVE):
                yield f"HANDLE_LIFE: {handle}: {' '.join(states)}"


def _excused(turn: Turn, harms: Sequence[Harm]) -> bool:
    """A turn may fail only if a process that was serving it was killed under it.

    No other fault excuses any: not what is done to the control plane, no pause, no cut, no
    engine that is away (another one is there for each role) and no orderly stop.
    """
    return any(
        harm.what == "killed"
        and turn.began <= harm.ended
        and harm.began <= turn.ended
        and turn.was_served_by(harm.part)
        for harm in harms
    )


def _read_twice(router_turns: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    reads = Counter(turn["handle_id"] for turn in router_turns if turn.get("outcome") == "PULLED")
    for handle, times in reads.items():
        if times > 1:
            yield f"READ_ONCE: {handle} was read {times} times"
