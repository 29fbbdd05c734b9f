"""What a router learns from its turns, and what it then decides."""

from __future__ import annotations

import math

import pytest
from tests.support.clock import ManualClock

from contraflow.core.cost import PROFILES, CostProfile
from contraflow.core.fleet import Engine, FleetView, Role, Session
from contraflow.core.instructions import Pull
from contraflow.core.plan import Decision, Plan, PlanReason, TurnRequest, plan_turn
from contraflow.router.costs import NO_DRAW, Costs, Decides, policy_of
from contraflow.router.metrics import RouterMetrics
from contraflow.router.report import Retry, TurnReport

PROFILE = PROFILES["p5en-h200-efa"]
SLOW_LINK = CostProfile(42_000, 3.2e-5, 1.0, 262_144, 1e9)
KEY, MODEL = "k", "m"
P1 = Engine("p1", "n", Role.PREFILL, "http://p", served_models=(MODEL,), bidirectional=True)
D1 = Engine("d1", "n", Role.DECODE, "http://d", served_models=(MODEL,), bidirectional=True)


def costs_of(decides: Decides, threshold: int = 64, profile: CostProfile = PROFILE) -> Costs:
    policy = policy_of(decides, threshold)
    return Costs(decides, policy, profile, ManualClock(), lambda: ("p1", "d1"), lambda: 0.5)


def plan(
    decides: Decides, tokens: int, costs: Costs, draw: float = NO_DRAW, threshold: int = 64
) -> Plan:
    session = Session(KEY, "d1", "agent:1", "d1/1", tokens, expires_at=100.0, retained_at=0.0)
    view = FleetView({"p1": P1, "d1": D1}, {KEY: session}, {})
    policy = policy_of(decides, threshold)
    return plan_turn(view, TurnRequest(MODEL, KEY), {}, policy, costs.least(MODEL, draw))


def report(
    pulled: int = 0, computed: int = 4150, seconds: float = 0.1, **fields: object
) -> TurnReport:
    moved = pulled * PROFILE.bytes_per_token
    outcome = "PULLED" if pulled else "UNSPECIFIED"
    pull = Pull(
        outcome, "d1" if pulled else "", computed_tokens=computed, pulled_tokens=pulled,
        bytes=moved, transfer_seconds=0.6 * seconds, wall_seconds=0.8 * seconds if pulled else 0.0,
    )  # fmt: skip
    found = TurnReport(
        "t", "r", model=MODEL, prefill="p1", holder="d1", pull=pull, offered_tokens=4000
    )
    found.seconds["prefill"] = seconds
    for name, value in fields.items():
        setattr(found, name, value)
    return found


@pytest.mark.parametrize("tokens", [10, 100, 1_000, 20_000])
def test_without_a_fit_the_threshold_decides(tokens: int) -> None:
    costs = costs_of(Decides.THRESHOLD)
    assert costs.least(MODEL, NO_DRAW) is None
    assert (plan(Decides.THRESHOLD, tokens, costs).decision is Decision.PULL) is (tokens >= 64)


@pytest.mark.parametrize(("decides", "pulls"), [(Decides.ALWAYS, True), (Decides.NEVER, False)])
@pytest.mark.parametrize("tokens", [1, 100, 20_000])
def test_always_and_never(decides: Decides, pulls: bool, tokens: int) -> None:
    found = plan(decides, tokens, costs_of(decides))
    assert (found.decision is Decision.PULL) is pulls
    if not pulls:
        assert found.reason is PlanReason.BELOW_THRESHOLD


def test_never_is_never_even_if_nobody_knows_the_length() -> None:
    view = FleetView({"p1": P1, "d1": D1}, {}, {KEY: "d1"})
    policy = policy_of(Decides.NEVER, 64)
    assert plan_turn(view, TurnRequest(MODEL, KEY), {}, policy).decision is Decision.RECOMPUTE
    always = plan_turn(view, TurnRequest(MODEL, KEY), {}, policy_of(Decides.ALWAYS, 64))
    assert always.decision is Decision.PULL


def test_the_fit_starts_from_the_profile() -> None:
    costs = costs_of(Decides.FITTED)
    assert plan(Decides.FITTED, 20_000, costs).decision is Decision.PULL
    small = plan(Decides.FITTED, 200, costs)
    assert (small.decision, small.reason) == (Decision.RECOMPUTE, PlanReason.BELOW_THRESHOLD)
    assert (
        costs.min_pull_tokens(MODEL, plan(Decides.FITTED, 20_000, costs), 20_000, explores=False)
        > 64
    )


def test_the_threshold_bounds_the_fit_from_below() -> None:
    costs = costs_of(Decides.FITTED, 30_000)
    found = plan(Decides.FITTED, 20_000, costs, threshold=30_000)
    assert found.decision is Decision.RECOMPUTE
    assert not costs.took(MODEL, found, 0.0)
    assert costs.floor == 30_000


def test_what_was_measured_changes_the_decision() -> None:
    costs = costs_of(Decides.FITTED, profile=SLOW_LINK)
    assert plan(Decides.FITTED, 4000, costs).decision is Decision.RECOMPUTE
    for _ in range(10):
        costs.learn(report(seconds=0.15))
        costs.learn(report(pulled=4000, computed=150, seconds=0.05))
    pulling = plan(Decides.FITTED, 4000, costs)
    assert pulling.decision is Decision.PULL
    assert 64 <= costs.min_pull_tokens(MODEL, pulling, 4000, explores=False) < 4000


def test_each_model_is_learnt_apart() -> None:
    costs = costs_of(Decides.FITTED, profile=SLOW_LINK)
    found = plan(Decides.FITTED, 4000, costs)
    before = costs.expect("other", found)(4000, 150)
    for _ in range(10):
        costs.learn(report(pulled=4000, computed=150, seconds=0.05))
    assert costs.expect("other", found)(4000, 150) == before
    assert costs.expect(MODEL, found)(4000, 150).seconds < before.seconds / 2


def test_planning_changes_nothing_and_a_turn_that_explores_is_counted() -> None:
    costs = costs_of(Decides.FITTED, profile=SLOW_LINK)
    plans = [plan(Decides.FITTED, 20_000, costs, draw=0.0) for _ in range(3)]
    assert [one.decision for one in plans] == [Decision.PULL] * 3
    assert costs.min_pull_tokens(MODEL, plans[0], 20_000, explores=True) == 64
    assert costs.took(MODEL, plans[0], 0.0)
    assert plan(Decides.FITTED, 20_000, costs, draw=0.0).decision is Decision.RECOMPUTE
    assert not costs.took(MODEL, plans[0], NO_DRAW)


def test_a_turn_is_judged_by_what_the_other_decision_would_have_taken() -> None:
    costs = costs_of(Decides.THRESHOLD)
    pulled = costs.learn(report(pulled=4000, computed=150, seconds=2.0))
    assert pulled is not None
    assert pulled.other is not None
    assert pulled.other < 2.0
    assert pulled.regret == pytest.approx(2.0 - pulled.other)
    computed = costs.learn(report(seconds=0.01))
    assert computed is not None
    assert computed.regret == 0
    alone = costs.learn(report(holder="", offered_tokens=0))
    assert alone is not None
    assert (alone.other, alone.regret) == (None, 0.0)


@pytest.mark.parametrize(
    "useless",
    [
        {"pull": None},
        {"pull": Pull("FAILED", "d1", computed_tokens=4000)},
        {"pull": Pull("UNSPECIFIED", computed_tokens=0)},
        {"pull": Pull("PULLED", "d1", pulled_tokens=10, computed_tokens=5)},
        {"retries": [Retry.PREFILL_RESENT]},
        {"prefill": ""},
        {"seconds": {}},
    ],
    ids=str,
)
def test_what_tells_nothing_is_not_learnt(useless: dict[str, object]) -> None:
    costs = costs_of(Decides.FITTED)
    found = plan(Decides.FITTED, 4000, costs)
    before = costs.expect(MODEL, found)(4000, 150)
    one = report(seconds=5.0)
    for name, value in useless.items():
        setattr(one, name, value)
    assert costs.learn(one) is None
    assert costs.expect(MODEL, found)(4000, 150) == before


def test_engines_that_are_gone_are_forgotten_once_another_one_comes() -> None:
    known = ["p1", "d1"]
    costs = Costs(
        Decides.FITTED,
        policy_of(Decides.FITTED, 64),
        PROFILE,
        ManualClock(),
        lambda: known,
        lambda: 0.5,
    )
    found = plan(Decides.FITTED, 4000, costs)
    before = costs.expect(MODEL, found)(0, 4150)
    for _ in range(5):
        costs.learn(report(seconds=5.0))
    assert costs.expect(MODEL, found)(0, 4150).seconds > 1
    known[:] = ["p2", "d1"]
    costs.learn(report(prefill="p2"))
    assert costs.expect(MODEL, found)(0, 4150) == before


def test_metrics_tell_expected_and_measured_and_regret() -> None:
    metrics, costs = RouterMetrics(), costs_of(Decides.FITTED)
    one = report(pulled=4000, computed=150, seconds=2.0, decision="PULL", explores=True, status=200)
    judged = costs.learn(one)
    metrics.turn_finished(one, judged)

    def value(name: str) -> float | None:
        return metrics.registry.get_sample_value(
            f"contraflow_router_{name}_total", {"decision": "PULL"}
        )

    assert judged is not None
    assert value("prefill_expected_seconds") == judged.expected
    assert value("prefill_measured_seconds") == 2.0
    assert value("regret_seconds") == judged.regret > 0
    assert value("explored_turns") == 1


def test_only_a_fit_draws() -> None:
    assert costs_of(Decides.FITTED).draw() == 0.5
    assert costs_of(Decides.THRESHOLD).draw() == NO_DRAW


def test_never_has_a_floor_that_travels() -> None:
    assert math.isinf(policy_of(Decides.NEVER, 64).recompute_threshold_tokens)
    assert costs_of(Decides.NEVER).floor == 1
