"""The retention policy against a naive model, and what it comes to over time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile

import hypothesis.strategies as st
from hypothesis import given

from contraflow.core.retention import Decision, Policy, decide

NOW = 10_000.0


@dataclass(frozen=True)
class Held:
    """A handle as the policy sees it."""

    handle_id: str
    num_blocks: int
    retained_at: float
    expires_at: float
    claimed: bool = False


@st.composite
def tenures(draw: st.DrawFn) -> list[Held]:
    """Handles of one engine, oldest first."""
    ages = sorted(draw(st.lists(st.floats(0, 3000), max_size=12)), reverse=True)
    return [
        Held(
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


def decided(
    handles: list[Held],
    policy: Policy,
    *,
    num_blocks: int,
    draining: bool = False,
    emptying: bool = False,
    most_renewed: int = 1000,
    now: float = NOW,
) -> Decision:
    """What is decided if everything is looked at."""
    return decide(
        handles,
        handles,
        policy,
        held_blocks=sum(one.num_blocks for one in handles),
        num_blocks=num_blocks,
        draining=draining,
        emptying=emptying,
        most_renewed=most_renewed,
        now=now,
    )


def naive(
    handles: list[Held], policy: Policy, num_blocks: int, draining: bool, emptying: bool
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


@given(tenures(), policies, st.integers(1, 400), st.booleans(), st.booleans(), st.integers(0, 12))
def test_it_decides_as_the_naive_model_does(
    handles: list[Held],
    policy: Policy,
    num_blocks: int,
    draining: bool,
    emptying: bool,
    most_renewed: int,
) -> None:
    decision = decided(
        handles,
        policy,
        num_blocks=num_blocks,
        draining=draining,
        emptying=emptying,
        most_renewed=most_renewed,
    )
    release, renew = naive(handles, policy, num_blocks, draining, emptying)
    assert decision == Decision(tuple(release), tuple(renew[:most_renewed]))


def unread(handles: Iterable[Held]) -> Iterator[Held]:
    """Fails whoever looks at it."""
    raise AssertionError("this was not to be looked at")
    yield from handles


@given(tenures(), policies, st.booleans(), st.integers(0, 12))
def test_it_looks_at_no_more_than_it_must(
    handles: list[Held], policy: Policy, draining: bool, most_renewed: int
) -> None:
    held_blocks = sum(one.num_blocks for one in handles)
    within = replace(policy, budget_share=1.0)
    left = iter(handles)
    decision = decide(
        unread(handles),
        left,
        within,
        held_blocks=held_blocks,
        num_blocks=held_blocks,
        draining=draining,
        most_renewed=most_renewed,
        now=NOW,
    )
    assert decision.release == ()
    # What it has not come to is there for the next decision.
    rest = [one.handle_id for one in left if within.is_due(one, NOW)]
    due = [one.handle_id for one in handles if within.is_due(one, NOW)]
    assert [*decision.renew, *rest] == due
    assert not draining or decision.renew == ()


@given(tenures(), policies, st.integers(1, 400), st.booleans())
def test_what_it_frees_is_needed_and_enough(
    handles: list[Held], policy: Policy, num_blocks: int, draining: bool
) -> None:
    decision = decided(handles, policy, num_blocks=num_blocks, draining=draining)
    budget = policy.budget_share * num_blocks
    freed = [one for one in handles if one.handle_id in decision.release]
    kept = sum(one.num_blocks for one in handles if one not in freed)
    unclaimed = [one for one in handles if not one.claimed]
    assert kept <= budget or freed == unclaimed
    assert freed == list(takewhile(lambda one: one.handle_id in decision.release, unclaimed))
    if freed:
        assert kept + freed[-1].num_blocks > int(budget)
    again = decided(
        [one for one in handles if one not in freed],
        policy,
        num_blocks=num_blocks,
        draining=draining,
    )
    assert again.release == ()
    assert again.renew == decision.renew


@given(policies, st.floats(0.01, 0.4))
def test_a_handle_lives_as_long_as_it_may_idle_and_no_lease_longer(
    policy: Policy, between: float
) -> None:
    handle = Held("e/1", 1, NOW, NOW + policy.ttl)
    policy = replace(policy, budget_share=1.0)
    now = NOW
    while handle.expires_at > now:
        found = decided([handle], policy, num_blocks=10, now=now)
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
    old = Held("e/1", 40, NOW - 300, NOW + 180)
    claimed = Held("e/2", 60, NOW - 300, NOW + 180, claimed=True)
    assert decided([old], policy, num_blocks=100).renew == ("e/1",)
    assert decided([old], policy, num_blocks=100, draining=True) == Decision()
    both = decided([old, claimed], policy, num_blocks=100)
    assert both == Decision(release=("e/1",))
