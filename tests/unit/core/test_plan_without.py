"""The next best engine in the place of one that refuses connections."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.plans import prefill_of

from contraflow.core.fleet import Engine, FleetView, Role, Session
from contraflow.core.plan import Decision, Plan, PlanReason, Policy, TurnRequest, plan_turn, without

KEY = "a" * 32


def engine(
    name: str, kind: str = "A", *, bidirectional: bool = True, draining: bool = False
) -> Engine:
    role = Role.PREFILL if name.startswith("p") else Role.DECODE
    return Engine(
        name, "n", role, f"http://{name[:2]}:8000", served_models=("m",), compatibility_class=kind,
        bidirectional=bidirectional, draining=draining,
    )  # fmt: skip


def plan(*engines: Engine, load: dict[str, int] | None = None) -> Plan:
    """D is d1, which holds a handle."""
    session = Session(KEY, "d1", "agent:1", "d1/1", 500, expires_at=100.0, retained_at=0.0)
    view = FleetView({one.engine_id: one for one in engines}, {KEY: session})
    found = plan_turn(view, TurnRequest("m", KEY), load or {}, Policy())
    assert found.decode.engine_id == "d1"
    return found


def test_another_prefill_engine_pulls_in_its_place() -> None:
    found = plan(engine("d1"), engine("p1"), engine("p2"), engine("p3"), load={"p1": -1, "p2": 1})
    assert prefill_of(found).engine_id == "p1"
    other = without(found, prefill_of(found))
    assert other is not None
    assert prefill_of(other).engine_id == "p3"
    assert (other.decision, other.home, other.handle_id) == (Decision.PULL, found.home, "d1/1")


def test_one_that_can_not_pull_computes() -> None:
    found = plan(engine("d1"), engine("p1"), engine("p2", bidirectional=False), load={"p2": 1})
    other = without(found, prefill_of(found))
    assert other is not None
    assert (prefill_of(other).engine_id, other.home, other.handle_id) == ("p2", None, "")
    assert (other.decision, other.reason) == (Decision.RECOMPUTE, PlanReason.INCOMPATIBLE)
    assert other.holder == found.holder  # who has the handle still


def test_another_decode_engine_of_the_class_goes_first() -> None:
    found = plan(
        engine("d1"), engine("d2", "B"), engine("d3"), engine("p1"), load={"d3": 9, "d2": 0}
    )
    other = without(found, found.decode)
    assert other is not None
    assert (other.decode.engine_id, other.hands_over) == ("d3", True)
    assert (other.decision, other.home) == (found.decision, found.home)


def test_one_of_another_class_serves_if_there_is_no_better() -> None:
    found = plan(engine("d1"), engine("d2", "B"), engine("p1"))
    other = without(found, found.decode)
    assert other is not None
    assert (other.decode.engine_id, other.hands_over) == ("d2", False)


@pytest.mark.parametrize("refused", ["p1", "d1"])
def test_nobody_takes_the_place_who_was_not_eligible(refused: str) -> None:
    found = plan(
        engine("d1"), engine("d2", draining=True), engine("p1"), engine("p2", draining=True)
    )
    gone = prefill_of(found) if refused == "p1" else found.decode
    assert without(found, gone) is None


def test_another_rank_behind_the_same_endpoint_refuses_as_well() -> None:
    found = plan(engine("d1"), engine("p1"), engine("p1-rank-1"), engine("p2"), load={"p2": 9})
    other = without(found, prefill_of(found))
    assert other is not None
    assert prefill_of(other).engine_id == "p2"


def test_one_that_is_not_registered_is_better_than_none() -> None:
    stranger = replace(engine("d0"), served_models=("another",))
    vanished = {"d0": stranger, "d2": engine("d2")}
    known = [engine("d1"), engine("p1")]

    def instead(*engines: Engine) -> str:
        view = FleetView({one.engine_id: one for one in engines}, vanished=vanished)
        found = plan_turn(view, TurnRequest("m"), {"d1": -9}, Policy())
        assert found.decode.engine_id == "d1"
        other = without(found, found.decode)
        assert other is not None
        return other.decode.engine_id

    assert instead(*known) == "d2"
    assert instead(*known, engine("d3")) == "d3"
