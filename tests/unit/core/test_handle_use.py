"""What becomes of a handle once its size is known."""

from __future__ import annotations

import pytest

from contraflow.core.fleet import Engine, Role
from contraflow.core.handle_use import HandleUse, use_by
from contraflow.core.plan import Decision, Plan, PlanReason, Policy

PLAN = Plan(
    Engine("d1", "n", Role.DECODE, "http://d1"),
    Engine("p1", "n", Role.PREFILL, "http://p1"),
    Decision.PULL,
    PlanReason.HANDLE_AVAILABLE,
)


@pytest.mark.parametrize("least", [1, 64, 1000])
def test_what_turns_out_to_be_below_the_threshold_is_kept(least: int) -> None:
    decide = use_by(Policy(recompute_threshold_tokens=least))
    kept = HandleUse(Decision.RECOMPUTE, PlanReason.BELOW_THRESHOLD)
    assert decide(PLAN, least - 1) == kept
    assert not kept.release
    assert decide(PLAN, least) == HandleUse(min_pull_tokens=least)
