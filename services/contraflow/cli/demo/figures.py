"""What a turn moved, and whether everybody says the same about it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from contraflow.cli.deployment.metrics import PromptTokens

LEAST_SHARE = 0.9
"""Part of the previous response's tokens that each later turn must pull."""


@dataclass(frozen=True)
class TurnFigures:
    """One turn. ``measured`` is what P's own metrics rose by, ``reported`` the pairs of the
    router's ``x-contraflow`` header, ``ttft`` seconds."""

    number: int
    router: str
    prompt_ids: Sequence[int] = field(repr=False)
    output_ids: Sequence[int] = field(repr=False)
    reference_ids: Sequence[int] = field(repr=False)
    finish_reason: str
    measured: PromptTokens
    reported: Mapping[str, str]
    ttft: float
    share: float | None = None

    @property
    def identical(self) -> bool:
        """True if the reference generated the same tokens."""
        return bool(self.output_ids) and list(self.output_ids) == list(self.reference_ids)

    @property
    def plan(self) -> str:
        """Decision and reason."""
        parts = [self.reported.get(name, "") for name in ("decision", "reason", "denial")]
        return " ".join(part for part in parts if part)

    def problems(self) -> list[str]:
        """Everything about this turn that must not be, in words."""
        found = []
        if self.measured.total != len(self.prompt_ids):
            found.append(
                f"P's metrics account for {self.measured.total} tokens of a prompt of "
                f"{len(self.prompt_ids)}"
            )
        found += [
            f"{name}: P's metrics say {measured}, its connector reported {reported}"
            for name, measured, reported in self._pairs()
            if str(measured) != reported
        ]
        if self.share is not None and self.share < LEAST_SHARE:
            found.append(f"only {self.share:.0%} of the previous response's tokens were pulled")
        if not self.identical:
            found.append(f"the tokens differ from the reference's {self._first_difference()}")
        return [f"turn {self.number}: {text}" for text in found]

    def _pairs(self) -> list[tuple[str, int, str]]:
        measured = self.measured
        pulled = [("pulled", measured.pulled), ("bytes", measured.bytes)]
        rest = [("local", measured.local), ("computed", measured.computed)]
        if "pulled" not in self.reported:
            # A connector that was asked for no pull reports none: then nothing may have moved.
            return [(name, value, "0") for name, value in pulled]
        return [(name, value, self.reported.get(name, "nothing")) for name, value in pulled + rest]

    def _first_difference(self) -> str:
        mine, other = self.output_ids, self.reference_ids
        same = common_prefix(mine, other)
        return f"from token {same + 1} on ({len(mine)} against {len(other)} tokens)"


@dataclass(frozen=True)
class Outcome:
    """A whole conversation."""

    turns: tuple[TurnFigures, ...]

    @property
    def identical(self) -> int:
        """Turns whose tokens equal the reference's."""
        return sum(turn.identical for turn in self.turns)

    def problems(self) -> list[str]:
        """Everything that must not be; empty if the demo succeeded."""
        found = [problem for turn in self.turns for problem in turn.problems()]
        if sum(turn.finish_reason == "tool_calls" for turn in self.turns) < 2:
            found.append("fewer than two turns ended in tool calls")
        return found

    def verdict(self) -> str:
        """The line that matters most."""
        total = len(self.turns)
        return f"tokens identical to the single-engine reference: {self.identical} of {total} turns"


def pulled_share(previous_prompt: int, previous_output: int, local: int, pulled: int) -> float:
    """Part of the previous response's tokens that lie in the range that P pulled.

    All arguments are counts of tokens. P found ``local`` leading tokens of its prompt in its own
    cache and pulled the next ``pulled``. Of the previous response all tokens but the last have
    KV; the last one counts as not pulled.
    """
    first, end = previous_prompt, previous_prompt + previous_output - 1
    overlap = min(end, local + pulled) - max(first, local)
    return max(0, overlap) / previous_output if previous_output else 0.0


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading items are equal."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(left), len(right)))
