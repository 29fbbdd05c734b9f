"""Plans of turns that are known by their messages only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contraflow.core.fleet import Engine, FleetView, Role, Session
from contraflow.core.plan import (
    Continuation,
    Decision,
    Plan,
    PlanReason,
    Policy,
    TurnRequest,
    plan_turn,
)

OWN, BEFORE = "a" * 32, "b" * 32


def engine(name: str, role: Role) -> Engine:
    return Engine(name, "n", role, f"http://{name}", served_models=("m",), bidirectional=True)


ENGINES = {
    one.engine_id: one
    for one in (engine("p", Role.PREFILL), engine("d1", Role.DECODE), engine("d2", Role.DECODE))
}
RECORD = Session(BEFORE, "d2", "agent:1", "d2/h", 500, expires_at=100.0, retained_at=0.0)


def plan(
    continues: Continuation,
    *records: Session,
    homes: dict[str, str] | None = None,
    load: dict[str, int] | None = None,
) -> Plan:
    sessions = {record.session_key: record for record in records}
    view = FleetView(ENGINES, sessions, homes or {})
    request = TurnRequest("m", OWN, continues=continues)
    return plan_turn(view, request, load or {}, Policy())


def outcome(plan: Plan) -> tuple[str, str, str]:
    return plan.reason, plan.home.engine_id if plan.home else "", plan.decode.engine_id


def test_the_handle_before_is_pulled_not_one_of_equal_messages() -> None:
    own = replace(RECORD, session_key=OWN, engine_id="d1")
    found = plan(Continuation(BEFORE), RECORD, own)
    assert outcome(found) == ("HANDLE_AVAILABLE", "d2", "d2")
    assert (found.handle_id, found.handle_tokens) == ("d2/h", 500)
    assert outcome(plan(Continuation(), own))[:2] == ("NO_HANDLE", "")


def test_the_engine_that_made_the_reply_is_asked() -> None:
    named = Continuation(BEFORE, "turn-1", "d1")
    assert outcome(plan(named)) == ("HANDLE_AVAILABLE", "d1", "d1")
    found = plan(named, RECORD, homes={BEFORE: "d2"})
    assert outcome(found) == ("HANDLE_AVAILABLE", "d1", "d1")
    assert (found.handle_id, found.handle_tokens) == ("", 0)
    assert outcome(plan(replace(named, engine_id="gone")))[:2] == ("NO_HANDLE", "")


@pytest.mark.parametrize(("branches", "homes"), [(2, {}), (3, {BEFORE: "d2"}), (1, {BEFORE: "d1"})])
def test_several_candidates_are_not_guessed_between(branches: int, homes: dict[str, str]) -> None:
    found = plan(Continuation(BEFORE), replace(RECORD, branches=branches), homes=homes)
    assert found.decision is Decision.RECOMPUTE
    assert found.reason is PlanReason.AMBIGUOUS_SESSION
    named = Continuation(BEFORE, "turn-1", "d2")
    found = plan(named, replace(RECORD, branches=branches), homes=homes)
    assert outcome(found) == ("HANDLE_AVAILABLE", "d2", "d2")


@pytest.mark.parametrize("homes", [{BEFORE: "d2"}, {BEFORE: "gone"}])
def test_one_candidate_is_no_tie(homes: dict[str, str]) -> None:
    found = plan(Continuation(BEFORE), RECORD, homes=homes)
    assert outcome(found) == ("HANDLE_AVAILABLE", "d2", "d2")


def test_what_the_record_says_of_another_branch_does_not_count() -> None:
    short = replace(RECORD, num_tokens=10, branches=2)
    found = plan(Continuation(BEFORE, "turn-1", "d2"), short)
    assert found.reason is PlanReason.HANDLE_AVAILABLE
    assert plan(Continuation(BEFORE), replace(short, branches=1)).reason == "BELOW_THRESHOLD"


def test_branches_of_a_named_session_are_its_own() -> None:
    view = FleetView(ENGINES, {BEFORE: replace(RECORD, branches=3)})
    found = plan_turn(view, TurnRequest("m", BEFORE), {}, Policy())
    assert found.decision is Decision.PULL


def test_equal_messages_meet_where_that_costs_no_balance() -> None:
    alone = plan(Continuation()).decode.engine_id
    [other] = {"d1", "d2"} - {alone}
    own = replace(RECORD, session_key=OWN, engine_id=other)
    assert plan(Continuation(), own).decode.engine_id == other
    assert plan(Continuation(), homes={OWN: other}).decode.engine_id == other
    assert plan(Continuation(), own, load={other: 1}).decode.engine_id == alone
    assert plan(Continuation(BEFORE), own, homes={BEFORE: alone}).decode.engine_id == alone
