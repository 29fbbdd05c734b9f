"""Estimates of what a prefill leg would cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contraflow.core.cost import PROFILES, CostProfile, estimates
from contraflow.core.fit import Expected
from contraflow.core.fleet import Engine, Role
from contraflow.core.plan import Decision, Plan, PlanReason

PROFILE = CostProfile(
    prompt_tokens_per_second=1000,
    context_coefficient=0.001,
    pull_setup_seconds=0.5,
    bytes_per_token=100,
    bytes_per_second=10_000,
)


def expect(pulled: int, computed: int) -> Expected:
    return Expected(pulled / 1000 + computed / 100, 0.5)


ENGINE = Engine("e", "nonce", Role.DECODE, "http://e")
tokens = st.integers(0, 2_000_000)


def plan(decision: Decision, reason: PlanReason, handle_tokens: int) -> Plan:
    return Plan(ENGINE, ENGINE, decision, reason, handle_tokens=handle_tokens)


def pulling(handle_tokens: int) -> Plan:
    return plan(Decision.PULL, PlanReason.HANDLE_AVAILABLE, handle_tokens)


def test_computing_costs_more_behind_a_longer_context() -> None:
    assert PROFILE.compute_seconds(1000, context=0) == pytest.approx(1.0 * 1.5)
    assert PROFILE.compute_seconds(1000, context=1000) == pytest.approx(1.0 * 2.5)


def test_a_pull_costs_its_set_up_and_its_bytes() -> None:
    assert PROFILE.pull_seconds(100) == pytest.approx(0.5 + 1.0)
    assert PROFILE.pull_seconds(0) == 0


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
@given(first=tokens, more=tokens)
def test_computing_in_two_parts_costs_what_one_does(
    profile: CostProfile, first: int, more: int
) -> None:
    parts = profile.compute_seconds(first, 0) + profile.compute_seconds(more, first)
    assert parts == pytest.approx(profile.compute_seconds(first + more, 0))


def test_a_plan_that_pulls_has_both_estimates_that_of_the_pull_first() -> None:
    found = estimates(expect, pulling(300), prompt_tokens=400)
    assert [(e.decision, e.pulled_tokens, e.computed_tokens) for e in found] == [
        (Decision.PULL, 300, 100),
        (Decision.RECOMPUTE, 0, 400),
    ]
    assert [e.time for e in found] == [Expected(1.3, 0.5), Expected(4.0, 0.5)]


def test_a_small_handle_could_be_pulled_although_it_is_not() -> None:
    small = plan(Decision.RECOMPUTE, PlanReason.BELOW_THRESHOLD, 10)
    found = estimates(expect, small, prompt_tokens=400)
    assert [e.decision for e in found] == [Decision.RECOMPUTE, Decision.PULL]


@pytest.mark.parametrize(
    "reason", set(PlanReason) - {PlanReason.HANDLE_AVAILABLE, PlanReason.BELOW_THRESHOLD}
)
def test_what_can_not_be_pulled_is_not_estimated(reason: PlanReason) -> None:
    found = estimates(expect, plan(Decision.RECOMPUTE, reason, 300), prompt_tokens=400)
    assert [e.decision for e in found] == [Decision.RECOMPUTE]


def test_the_prompt_is_the_handle_if_nobody_says_more() -> None:
    found = estimates(expect, pulling(300), prompt_tokens=0)
    assert [(e.pulled_tokens, e.computed_tokens) for e in found] == [(300, 0), (0, 300)]


def test_a_prompt_that_is_shorter_than_the_handle_bounds_the_pull() -> None:
    found = estimates(expect, pulling(300), prompt_tokens=200)
    assert [(e.pulled_tokens, e.computed_tokens) for e in found] == [(200, 0), (0, 200)]


def test_unknown_numbers_leave_estimates_out() -> None:
    assert estimates(expect, pulling(0), prompt_tokens=0) == []
    found = estimates(expect, pulling(0), prompt_tokens=400)
    assert [e.decision for e in found] == [Decision.RECOMPUTE]


def test_on_the_machines_that_it_is_for_a_long_handle_pays() -> None:
    profile = PROFILES["p5en-h200-efa"]
    pulled = profile.pull_seconds(24_000) + profile.compute_seconds(150, 24_000)
    assert 1.5 < profile.compute_seconds(24_150, 0) / pulled < 2.5
