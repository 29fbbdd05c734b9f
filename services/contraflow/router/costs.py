"""What pulls and prefills take here, and whether a pull is worth it: by what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum

from contraflow.core.break_even import BreakEven
from contraflow.core.cost import CostProfile
from contraflow.core.fit import Expected
from contraflow.core.fleet import Engine
from contraflow.core.plan import Least, Plan, PlanReason, Policy
from contraflow.router.report import TurnReport
from contraflow.runtime.clock import Clock

NO_DRAW = 1.0
"""Never explores."""


class Decides(StrEnum):
    """Who decides between a pull and a recompute."""

    THRESHOLD = "threshold"
    FITTED = "fitted"
    ALWAYS = "always"
    NEVER = "never"


def policy_of(decides: Decides, threshold_tokens: int) -> Policy:
    """The threshold alone, or what bounds all other decisions from below."""
    always = Policy(recompute_threshold_tokens=1)
    never = Policy(recompute_threshold_tokens=math.inf)
    fixed = {Decides.ALWAYS: always, Decides.NEVER: never}
    return fixed.get(decides, Policy(threshold_tokens))


@dataclass(frozen=True, slots=True)
class Judged:
    """A prefill leg in seconds: as was expected, as it was, as the other decision would have
    been expected to be (None if there was no other)."""

    expected: float
    measured: float
    other: float | None

    @property
    def regret(self) -> float:
        """Seconds by which the other decision would have been sooner."""
        return max(0.0, self.measured - self.other) if self.other is not None else 0.0


class Costs:
    """Of one router. ``known``: ids of the engines that there are, to forget all others.
    ``draw`` is uniform in [0, 1)."""

    def __init__(
        self,
        decides: Decides,
        policy: Policy,
        profile: CostProfile,
        clock: Clock,
        known: Callable[[], Collection[str]],
        draw: Callable[[], float],
    ) -> None:
        self._decides = decides
        self._policy = policy
        self._profile = profile
        self._clock = clock
        self._known = known
        self._draw = draw
        self._models: dict[str, BreakEven] = {}
        self._engines: set[str] = set()

    @property
    def floor(self) -> int:
        """Fewer tokens are pulled in no case."""
        floor = self._policy.recompute_threshold_tokens
        return 1 if math.isinf(floor) else int(floor)

    def draw(self) -> float:
        """For the plan of one turn, which may then explore."""
        return self._draw() if self._decides is Decides.FITTED else NO_DRAW

    def least(self, model: str, draw: float) -> Least | None:
        """For planning a turn; None if the policy's threshold alone decides. Changes nothing."""
        if self._decides is not Decides.FITTED:
            return None
        costs, now = self._of(model), self._clock.now()

        def least(prefill: Engine, holder: Engine, tokens: int) -> float:
            choice = costs.choose(
                prefill.engine_id, holder.engine_id,
                pullable=tokens, own=0, prompt=tokens + 1, now=now, draw=draw,
            )  # fmt: skip
            if choice.explores:
                return 1 if choice.pulls else math.inf
            return costs.least(prefill.engine_id, holder.engine_id, tokens)

        return least

    def took(self, model: str, plan: Plan, draw: float) -> bool:
        """Count a turn that was planned with ``draw`` and goes so. True if it explores."""
        by_tokens = plan.reason in (PlanReason.HANDLE_AVAILABLE, PlanReason.BELOW_THRESHOLD)
        tokens = plan.handle_tokens
        if self._decides is not Decides.FITTED or not by_tokens:
            return False
        if plan.prefill is None or plan.holder is None:
            return False
        if tokens < self._policy.recompute_threshold_tokens:
            return False
        pair = plan.prefill.engine_id, plan.holder.engine_id
        costs = self._keep(model)
        choice = costs.choose(
            *pair, pullable=tokens, own=0, prompt=tokens + 1, now=self._clock.now(), draw=draw
        )
        costs.took(*pair, choice)
        return choice.explores

    def min_pull_tokens(self, model: str, plan: Plan, tokens: int, *, explores: bool) -> int:
        """From how many tokens on, beyond its own cache, the prefill engine shall pull a handle
        of ``tokens``."""
        prefill, home = plan.prefill, plan.home
        if self._decides is not Decides.FITTED or explores or prefill is None or home is None:
            return self.floor
        costs = self._of(model)
        return max(self.floor, costs.least(prefill.engine_id, home.engine_id, tokens))

    def expect(self, model: str, plan: Plan) -> Callable[[int, int], Expected]:
        """How long a prefill leg of the plan, which must have one, takes that pulls so many tokens
        and then computes so many."""
        assert plan.prefill is not None
        costs, now = self._of(model), self._clock.now()
        prefill, holder = plan.prefill, plan.holder or plan.decode

        def expect(pulled: int, computed: int) -> Expected:
            return costs.expect(
                prefill.engine_id, holder.engine_id,
                local=0, pulled=pulled, computed=computed, now=now,
            )  # fmt: skip

        return expect

    def learn(self, report: TurnReport) -> Judged | None:
        """From a finished turn, if it tells anything: then also what to think of its decision."""
        pull, seconds = report.pull, report.seconds.get("prefill", 0.0)
        if pull is None or pull.outcome == "FAILED" or report.retries or not report.prefill:
            return None
        pulled = pull.pulled_tokens if pull.outcome == "PULLED" else 0
        moving = pull.wall_seconds if pulled else 0.0
        if pull.computed_tokens < 1 or seconds <= moving or (pulled and not pull.bytes):
            return None
        costs, now = self._keep(report.model), self._clock.now()
        self._forget_others(report.prefill, report.holder)
        holder = (pull.remote_engine_id if pulled else "") or report.holder
        there = min(report.offered_tokens, pull.local_tokens + pulled + pull.computed_tokens - 1)
        missing = max(0, there - pull.local_tokens)

        def expected(moved: int) -> float:
            computed = pulled + pull.computed_tokens - moved
            return costs.seconds(
                report.prefill, holder, local=pull.local_tokens, pulled=moved, computed=computed
            )

        other = expected(0) if pulled else expected(missing) if missing and holder else None
        judged = Judged(expected(pulled), seconds, other)
        context = pull.local_tokens + pulled
        costs.computed(report.prefill, pull.computed_tokens, context, seconds - moving, now)
        if pulled:
            costs.pulled(
                report.prefill, holder, pulled, pull.bytes, moving, now,
                transfer=pull.transfer_seconds or math.inf,
            )  # fmt: skip
        return judged

    def _of(self, model: str) -> BreakEven:
        return self._models.get(model) or BreakEven(self._profile)

    def _keep(self, model: str) -> BreakEven:
        return self._models.setdefault(model, self._of(model))

    def _forget_others(self, *engine_ids: str) -> None:
        if self._engines.issuperset(engine_ids):
            return
        known = {*self._known(), *engine_ids}
        for gone in self._engines - known:
            for costs in self._models.values():
                costs.forget(gone)
        self._engines = (self._engines & known) | set(engine_ids)
