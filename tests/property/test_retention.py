"""The retention policy against a naive model, and what it comes to over time."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

import hypothesis.strategies as st
from hypothesis import given

from contraflow.core.retention import Decision, Policy, Tenure, decide

NOW = 10_000.0


@st.composite
def tenures(draw: st.DrawFn) -> list[Tenure]:
    """Handles of one engine, oldest first."""
    ages = sorted(draw(st.lists(st.floats(0, 3000), max_size=12)), reverse=True)
    return [
        Tenure(
            f"e/{number}",
            draw(st.integers(1, 40)),
            NOW - age,
            NOW + draw(st.floats(0, 500)),
            draw(st.booleans()),
        )
        for number, age in enumerate(ages)
    ]


policies = st.builds(
    Policy,
    budget_share=st.floats(0, 1),
    ttl=st.floats(1, 600),
    max_idle=st.floats(0, 3000),
)


def naive(
    handles: list[Tenure], policy: Policy, num_blocks: int, draining: bool, emptying: bool
) -> tuple[list[str], list[str]]:
    """Takes one handle at a time, and looks at everything anew."""
    left = list(handles)
    released: list[str] = []
    budget = 0 if emptying else int(num_blocks * policy.budget_share)
    while sum(one.num_blocks for one in left) > budget:
        unclaimed = [one for one in left if not one.claimed]
        if not unclaimed:
            return released, []
        oldest = min(unclaimed, key=lambda one: handles.index(one))
        left.remove(oldest)
        released.append(oldest.handle_id)
    renewed = [
        one.handle_id
        for one in left
        if not one.claimed
        and not draining
        and NOW - one.retained_at < policy.max_idle
        and one.expires_at - NOW < policy.ttl / 2
    ]
    return released, renewed


@given(tenures(), policies, st.integers(1, 400), st.booleans(), st.booleans())
def test_it_decides_as_the_naive_model_does(
    handles: list[Tenure], policy: Policy, num_blocks: int, draining: bool, emptying: bool
) -> None:
    decision = decide(
        handles, policy, num_blocks=num_blocks, draining=draining, emptying=emptying, now=NOW
    )
    release, renew = naive(handles, policy, num_blocks, draining, emptying)
    assert decision == Decision(tuple(release), tuple(renew))


@given(tenures(), policies, st.integers(1, 400), st.booleans())
def test_what_it_frees_is_needed_and_enough(
    handles: list[Tenure], policy: Policy, num_blocks: int, draining: bool
) -> None:
    decision = decide(handles, policy, num_blocks=num_blocks, draining=draining, now=NOW)
    budget = policy.budget_share * num_blocks
    freed = [one for one in handles if one.handle_id in decision.release]
    kept = sum(one.num_blocks for one in handles if one not in freed)
    unclaimed = [one for one in handles if not one.claimed]
    assert kept <= budget or freed == unclaimed
    assert freed == list(takewhile(lambda one: one.handle_id in decision.release, unclaimed))
    if freed:
        assert kept + freed[-1].num_blocks > int(budget)
    again = decide(
        [one for one in handles if one not in freed],
        policy,
        num_blocks=num_blocks,
        draining=draining,
        now=NOW,
    )
    assert again.release == ()
    assert again.renew == decision.renew


@given(policies, st.floats(0.01, 0.4))
def test_a_handle_lives_as_long_as_it_may_idle_and_no_lease_longer(
    policy: Policy, between: float
) -> None:
    handle = Tenure("e/1", 1, NOW, NOW + policy.ttl)
    policy = replace(policy, budget_share=1.0)
    now = NOW
    while handle.expires_at > now:
        found = decide([handle], policy, num_blocks=10, draining=False, now=now)
        if found.renew:
            assert handle.expires_at - now < policy.ttl / 2
            handle = replace(handle, expires_at=now + policy.ttl)
        now += between * policy.ttl
    lived = handle.expires_at - NOW
    # The last renewal comes before it has idled too long, the first after half a lease.
    assert policy.max_idle < max(lived, policy.ttl)
    assert lived <= policy.max_idle + policy.ttl + 1e-6


def test_nothing_is_renewed_where_an_engine_drains_or_claims_fill_it() -> None:
    policy = Policy(0.5, 480.0, 1800.0)
    old = Tenure("e/1", 40, NOW - 300, NOW + 180)
    claimed = Tenure("e/2", 60, NOW - 300, NOW + 180, claimed=True)
    assert decide([old], policy, num_blocks=100, draining=False, now=NOW).renew == ("e/1",)
    assert decide([old], policy, num_blocks=100, draining=True, now=NOW) == Decision()
    both = decide([old, claimed], policy, num_blocks=100, draining=False, now=NOW)
    assert both == Decision(release=("e/1",))
