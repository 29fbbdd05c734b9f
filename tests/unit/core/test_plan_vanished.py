"""Engines whose agent is gone: they serve when nobody else can, and nothing is pulled."""

from __future__ import annotations

from contraflow.core.fleet import Engine, FleetView, Role, Session
from contraflow.core.plan import Decision, Plan, PlanReason, Policy, TurnRequest, plan_turn

KEY = "a" * 32


def engine(name: str, role: Role) -> Engine:
    return Engine(name, "n", role, f"http://{name}", served_models=("m",), bidirectional=True)


P, D, D2 = engine("p", Role.PREFILL), engine("d", Role.DECODE), engine("d2", Role.DECODE)
SESSION = Session(KEY, "d", "agent:1", "h", 500, expires_at=100.0, retained_at=0.0)


def plan(view: FleetView) -> Plan:
    return plan_turn(view, TurnRequest("m", KEY), {}, Policy())


def test_vanished_engines_serve_where_none_is_registered() -> None:
    found = plan(FleetView(vanished={"p": P, "d": D}, sessions={KEY: SESSION}, homes={KEY: "d"}))

    assert (found.prefill, found.decode) == (P, D)
    assert (found.decision, found.reason) == (Decision.RECOMPUTE, PlanReason.NO_HANDLE)


def test_registered_engines_go_first() -> None:
    found = plan(FleetView(engines={"p": P, "d2": D2}, vanished={"d": D}, homes={KEY: "d"}))

    assert found.decode == D2
    rejected = {one.engine.engine_id: one.rejected for one in found.candidates}
    assert rejected == {"d2": "", "d": "not registered", "p": ""}


def test_a_role_that_is_gone_does_not_take_the_other_with_it() -> None:
    found = plan(FleetView(engines={"p": P}, vanished={"d": D}))

    assert (found.prefill, found.decode) == (P, D)
