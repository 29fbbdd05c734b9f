"""Plans over arbitrary fleets: what must hold whatever the view says."""

from __future__ import annotations

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from contraflow.core.errors import NoEligibleEngine
from contraflow.core.fleet import Engine, FleetView, Role, Session
from contraflow.core.plan import Decision, Plan, PlanReason, Policy, TurnRequest, plan_turn

NOW = 100.0
KEYS = ("", "k1", "k2")
# One id may be a prefill engine here and a decode engine there: "home" may be a P.
ENGINE_IDS = tuple(f"e{number}" for number in range(6))


@st.composite
def engines(draw: st.DrawFn) -> dict[str, Engine]:
    ids = draw(st.lists(st.sampled_from(ENGINE_IDS), unique=True, min_size=1))
    return {
        engine_id: Engine(
            engine_id=engine_id,
            boot_nonce="n",
            role=draw(st.sampled_from(Role)),
            endpoint=f"http://{engine_id}:8000",
            served_models=tuple(draw(st.sets(st.sampled_from(["m1", "m2"])))),
            bidirectional=draw(st.booleans()),
            draining=draw(st.booleans()),
            compatibility_class=draw(st.sampled_from(["a", "b"])),
        )
        for engine_id in ids
    }


sessions = st.builds(
    Session,
    session_key=st.sampled_from(KEYS[1:]),
    engine_id=st.sampled_from(ENGINE_IDS),
    agent_address=st.just("agent:1"),
    handle_id=st.sampled_from(["h1", "h2"]),
    num_tokens=st.integers(0, 200),
    expires_at=st.sampled_from([NOW - 1, NOW, NOW + 1]),
)
views = st.builds(
    lambda engines, records, homes: FleetView(engines, {s.session_key: s for s in records}, homes),
    engines(),
    st.lists(sessions, max_size=3),
    st.dictionaries(st.sampled_from(KEYS[1:]), st.sampled_from(ENGINE_IDS)),
)
requests = st.builds(
    TurnRequest,
    model=st.sampled_from(["m1", "m2"]),
    session_key=st.sampled_from(KEYS),
    skips_prefix_cache=st.booleans(),
)
loads = st.dictionaries(st.sampled_from(ENGINE_IDS), st.integers(0, 5))
policies = st.builds(Policy, recompute_threshold_tokens=st.integers(1, 150))


def planned(
    view: FleetView, request: TurnRequest, load: dict[str, int], policy: Policy
) -> Plan | None:
    try:
        return plan_turn(view, request, load, policy)
    except NoEligibleEngine:
        return None


@given(views, requests, loads, policies)
def test_a_pull_is_only_ever_planned_where_it_can_be_made(
    view: FleetView, request: TurnRequest, load: dict[str, int], policy: Policy
) -> None:
    plan = planned(view, request, load, policy)
    if plan is None or plan.decision is not Decision.PULL:
        return
    home = plan.home
    assert home is not None
    assert plan.prefill is not None
    assert plan.reason is PlanReason.HANDLE_AVAILABLE
    assert home.engine_id != plan.prefill.engine_id
    assert home.bidirectional
    assert plan.prefill.bidirectional
    assert home.compatibility_class == plan.prefill.compatibility_class
    assert plan.hands_over
    assert request.session_key
    assert not request.skips_prefix_cache
    record = view.sessions.get(request.session_key)
    named = {view.homes.get(request.session_key), record.engine_id if record else None}
    assert home.engine_id in named
    if plan.handle_id:
        assert record is not None
        assert record.num_tokens >= policy.recompute_threshold_tokens


def test_such_fleets_do_lead_to_pulls() -> None:
    def pulls(case: tuple[FleetView, TurnRequest]) -> bool:
        plan = planned(*case, {}, Policy())
        return plan is not None and plan.decision is Decision.PULL

    searching = settings(derandomize=True, max_examples=20_000)
    assert find(st.tuples(views, requests), pulls, settings=searching)


@given(views, requests, loads, policies)
def test_legs_go_to_engines_that_serve_the_model_and_take_turns(
    view: FleetView, request: TurnRequest, load: dict[str, int], policy: Policy
) -> None:
    plan = planned(view, request, load, policy)
    if plan is None:
        return
    legs = [(plan.decode, Role.DECODE)]
    legs += [(plan.prefill, Role.PREFILL)] if plan.prefill else []
    for engine, role in legs:
        assert view.engines[engine.engine_id] is engine
        assert engine.role is role
        assert request.model in engine.served_models
        assert not engine.draining
    if plan.decision is not Decision.PULL:
        assert plan.home is None
        assert plan.handle_id == ""


@given(views, requests, loads, policies)
def test_a_plan_fails_only_without_decode_and_prefills_if_anybody_can(
    view: FleetView, request: TurnRequest, load: dict[str, int], policy: Policy
) -> None:
    able = {
        engine.role
        for engine in view.engines.values()
        if request.model in engine.served_models and not engine.draining
    }
    plan = planned(view, request, load, policy)
    assert (plan is None) is (Role.DECODE not in able)
    if plan is not None:
        assert (plan.prefill is None) is (Role.PREFILL not in able)
        assert (plan.decision is Decision.DECODE_ONLY) is (plan.prefill is None)


@given(views, requests, loads, policies)
def test_every_engine_of_both_roles_is_accounted_for(
    view: FleetView, request: TurnRequest, load: dict[str, int], policy: Policy
) -> None:
    plan = planned(view, request, load, policy)
    if plan is None:
        return
    assert {c.engine.engine_id for c in plan.candidates} == set(view.engines)
    chosen = {engine.engine_id for engine in (plan.prefill, plan.decode) if engine}
    assert not any(c.rejected for c in plan.candidates if c.engine.engine_id in chosen)


@given(views, requests, loads, policies)
def test_a_plan_depends_on_its_arguments_only(
    view: FleetView, request: TurnRequest, load: dict[str, int], policy: Policy
) -> None:
    backwards = FleetView(dict(reversed(list(view.engines.items()))), view.sessions, view.homes)
    assert planned(view, request, load, policy) == planned(backwards, request, load, policy)


def test_the_home_decodes_unless_it_can_not() -> None:
    home = Engine("d2", "n", Role.DECODE, "http://d2:1", served_models=("m",))
    other = Engine("d1", "n", Role.DECODE, "http://d1:1", served_models=("m",))
    prefill = Engine("p", "n", Role.PREFILL, "http://p:1", served_models=("m",))
    fleet = {engine.engine_id: engine for engine in (home, other, prefill)}
    view = FleetView(fleet, {}, {"k": "d2"})
    plan = plan_turn(view, TurnRequest("m", "k"), {"d2": 9}, Policy())
    assert plan.decode is home
    plan = plan_turn(view, TurnRequest("m", "other"), {"d1": 1}, Policy())
    assert plan.decode is home
    del fleet["d2"]
    plan = plan_turn(view, TurnRequest("m", "k"), {}, Policy())
    assert plan.decode is other
    assert plan.reason is PlanReason.NO_HANDLE
    del fleet["d1"]
    with pytest.raises(NoEligibleEngine):
        plan_turn(view, TurnRequest("m", "k"), {}, Policy())
