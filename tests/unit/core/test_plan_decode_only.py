"""Without a prefill engine that is eligible decode computes the prompt itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from contraflow.core.errors import NoEligibleEngine
from contraflow.core.fleet import Engine, FleetView, Role, Session
from contraflow.core.plan import (
    Continuation,
    Decision,
    Plan,
    PlanReason,
    Policy,
    TurnRequest,
    plan_turn,
    without,
)

KEY = "a" * 32
SESSION = Session(KEY, "d", "agent:1", "d/1", 500, expires_at=100.0, retained_at=0.0)


def engine(name: str, **fields: object) -> Engine:
    role = Role.PREFILL if name.startswith("p") else Role.DECODE
    known = Engine(name, "n", role, f"http://{name}", served_models=("m",), bidirectional=True)
    return replace(known, **fields)  # type: ignore[arg-type]


P, D = engine("p"), engine("d")


def view(*engines: Engine, vanished: tuple[Engine, ...] = ()) -> FleetView:
    return FleetView(
        {one.engine_id: one for one in engines}, {KEY: SESSION},
        vanished={one.engine_id: one for one in vanished},
    )  # fmt: skip


def plan(*engines: Engine, **fields: object) -> Plan:
    request = replace(TurnRequest("m", KEY), **fields)  # type: ignore[arg-type]
    return plan_turn(view(*engines), request, {}, Policy())


def is_decode_only(found: Plan) -> bool:
    told = found.decision, found.reason, found.prefill, found.home, found.handle_id
    return told == (Decision.DECODE_ONLY, PlanReason.NO_PREFILL_ENGINE, None, None, "")


@pytest.mark.parametrize(
    "prefills",
    [(), (engine("p", draining=True),), (engine("p", served_models=("other",)),),
     (engine("p", draining=True), engine("p2", served_models=("other",)))],
    ids=["none", "drained", "of another model", "one of each"],
)  # fmt: skip
def test_scenario_33_nobody_can_prefill(prefills: tuple[Engine, ...]) -> None:
    found = plan(D, *prefills)
    assert is_decode_only(found)
    assert found.decode is D
    assert not found.hands_over
    assert found.holder is D  # whose handle the turn makes useless
    assert {one.engine.engine_id for one in found.candidates if one.rejected} == {
        one.engine_id for one in prefills
    }


@pytest.mark.parametrize(
    "fields",
    [{"session_key": ""}, {"session_key": "b" * 32}, {"skips_prefix_cache": True},
     {"session_key": "b" * 32, "continues": Continuation(KEY)}],
    ids=["no session", "no handle", "no prefix cache", "by messages"],
)  # fmt: skip
def test_whatever_the_turn_is(fields: dict[str, object]) -> None:
    assert is_decode_only(plan(D, **fields))


def test_one_that_has_vanished_is_tried_before() -> None:
    found = plan_turn(view(D, vanished=(P,)), TurnRequest("m", KEY), {}, Policy())
    assert (found.prefill, found.decision) == (P, Decision.PULL)
    gone = replace(P, draining=True)
    found = plan_turn(view(D, vanished=(gone,)), TurnRequest("m", KEY), {}, Policy())
    assert is_decode_only(found)


def test_with_one_that_is_eligible_nothing_is_new() -> None:
    found = plan(D, P, engine("p2", draining=True))
    assert (found.prefill, found.decision) == (P, Decision.PULL)


def test_the_home_drains_too() -> None:
    found = plan(replace(D, draining=True), engine("d2"))
    assert is_decode_only(found)
    assert (found.decode.engine_id, found.holder) == ("d2", replace(D, draining=True))


@pytest.mark.parametrize(
    "decodes", [(), (engine("d", draining=True),), (engine("d", served_models=("other",)),)]
)
def test_without_a_decode_engine_there_is_no_plan(decodes: tuple[Engine, ...]) -> None:
    with pytest.raises(NoEligibleEngine, match="decode"):
        plan(P, *decodes)


def test_decode_refuses_and_another_takes_its_place() -> None:
    found = plan(D, engine("d2"), engine("d3", compatibility_class="B"))
    other = without(found, D)
    assert other is not None
    assert (other.decode.engine_id, other.prefill) == ("d2", None)
    assert is_decode_only(other)
    assert without(plan(D), D) is None


# A turn that adds little.

BEFORE = "b" * 32
HELD = replace(SESSION, message_digest=BEFORE)


def short(
    *engines: Engine, below: int = 100, session: Session = HELD, **fields: object
) -> tuple[str, str]:
    known = FleetView({one.engine_id: one for one in engines}, {session.session_key: session})
    request = replace(TurnRequest("m", KEY, added=((BEFORE, 99.0),)), **fields)  # type: ignore[arg-type]
    found = plan_turn(known, request, {}, Policy(decode_only_below_tokens=below))
    assert (found.prefill is None) is (found.decision is Decision.DECODE_ONLY)
    assert found.holder is engines[0]
    return found.decision, found.reason


def test_the_home_computes_a_few_tokens_itself() -> None:
    assert short(D, P) == ("DECODE_ONLY", "SHORT_SUFFIX")
    by_messages: dict[str, Any] = {"session_key": "c" * 32, "continues": Continuation(KEY)}
    assert short(D, P, **by_messages) == ("DECODE_ONLY", "SHORT_SUFFIX")


@pytest.mark.parametrize("below", [0, 99])
def test_it_is_a_setting(below: int) -> None:
    assert short(D, P, below=below) == ("PULL", "HANDLE_AVAILABLE")


@pytest.mark.parametrize(
    "added", [(), ((BEFORE, 100.0),), (("c" * 32, 1.0),), ((BEFORE, float("inf")),)],
    ids=["unknown", "too many", "of another history", "not countable"],
)  # fmt: skip
def test_what_is_not_surely_little_goes_to_prefill(added: object) -> None:
    assert short(D, P, added=added) == ("PULL", "HANDLE_AVAILABLE")


def test_only_the_home_has_the_rest() -> None:
    assert short(replace(D, draining=True), engine("d2"), P, session=HELD)[0] == "PULL"


def test_a_record_of_several_branches_tells_of_the_newest_only() -> None:
    named: dict[str, Any] = {"session_key": "c" * 32, "continues": Continuation(KEY, "turn-1", "d")}
    assert short(D, P, session=replace(HELD, branches=2), **named)[0] == "PULL"


def test_what_skips_the_prefix_cache_would_find_nothing_there() -> None:
    assert short(D, P, skips_prefix_cache=True) == ("RECOMPUTE", "UNSUPPORTED_REQUEST")
