"""What a prefill leg would cost: named profiles to start from, and estimates for a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from contraflow.core.fit import Expected
from contraflow.core.plan import Decision, Plan, PlanReason


@dataclass(frozen=True, slots=True)
class CostProfile:
    """How fast one model prefills and is transferred on one kind of machine.

    ``prompt_tokens_per_second``: at an empty context. ``context_coefficient``: by what share
    a token takes longer for each token before it. ``pull_setup_seconds``: claim, handshake and
    queueing of a pull of any size. ``bytes_per_token``: KV, all ranks together.
    ``bytes_per_second``: of a pull, all ranks together.
    """

    prompt_tokens_per_second: float
    context_coefficient: float
    pull_setup_seconds: float
    bytes_per_token: int
    bytes_per_second: float

    def compute_seconds(self, tokens: int, context: int) -> float:
        """Time to compute ``tokens`` that follow ``context`` tokens."""
        mean_context = context + tokens / 2
        slowdown = 1 + self.context_coefficient * mean_context
        return tokens / self.prompt_tokens_per_second * slowdown

    def pull_seconds(self, tokens: int) -> float:
        """Time to pull the KV of ``tokens``; none of it takes none."""
        if not tokens:
            return 0.0
        return self.pull_setup_seconds + tokens * self.bytes_per_token / self.bytes_per_second


PROFILES: Mapping[str, CostProfile] = {
    # The random model of the demo: float32, 12 layers, two KV heads of 32. Rounded figures for
    # two cores and loopback TCP.
    "cpu-demo": CostProfile(
        prompt_tokens_per_second=4_000,
        context_coefficient=1e-4,
        pull_setup_seconds=0.05,
        bytes_per_token=12 * 2 * 2 * 32 * 4,
        bytes_per_second=200e6,
    ),
    # A dense model of 32 billion parameters in bf16: 64 layers, eight KV heads of 128. Rates are
    # set so that 24k tokens take about 0.78 s computed and 0.4 s pulled.
    "p5en-h200-efa": CostProfile(
        prompt_tokens_per_second=42_000,
        context_coefficient=3.2e-5,
        pull_setup_seconds=0.05,
        bytes_per_token=64 * 2 * 8 * 128 * 2,
        bytes_per_second=18e9,
    ),
}


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one decision would cost."""

    decision: Decision
    pulled_tokens: int
    computed_tokens: int
    time: Expected


# The handle is there and could be read: it is pulled, or left since it is small.
_COULD_PULL = (PlanReason.HANDLE_AVAILABLE, PlanReason.BELOW_THRESHOLD)


def estimates(
    expect: Callable[[int, int], Expected], plan: Plan, prompt_tokens: int
) -> list[Estimate]:
    """One for each decision that is possible, the one taken first.

    ``expect`` tells how long pulling so many tokens and then computing so many takes.
    ``prompt_tokens`` zero stands for those of the handle. What would need a number of tokens
    that nobody knows is left out.
    """
    prompt = prompt_tokens or plan.handle_tokens
    if not prompt:
        return []
    found = [Estimate(Decision.RECOMPUTE, 0, prompt, expect(0, prompt))]
    if plan.handle_tokens and plan.reason in _COULD_PULL:
        pulled = min(plan.handle_tokens, prompt)
        rest = prompt - pulled
        found.append(Estimate(Decision.PULL, pulled, rest, expect(pulled, rest)))
    return sorted(found, key=lambda one: one.decision is not plan.decision)
