"""Which engines may exchange blocks, and which rank of an endpoint is meant."""

from __future__ import annotations

import pytest
from tests.support.plans import prefill_of

from contraflow.core.fleet import Engine, FleetView, Role, Session
from contraflow.core.plan import Decision, Plan, PlanReason, Policy, TurnRequest, plan_turn

KEY = "a" * 32


def engine(
    name: str, role: Role, kind: str = "A", *, dp_rank: int = 0, bidirectional: bool = True,
    draining: bool = False,
) -> Engine:  # fmt: skip
    return Engine(
        name, "n", role, "http://node:8000", dp_rank=dp_rank, served_models=("m",),
        compatibility_class=kind, bidirectional=bidirectional, draining=draining,
    )  # fmt: skip


def prefill(name: str, kind: str = "A", *, bidirectional: bool = True) -> Engine:
    return engine(name, Role.PREFILL, kind, bidirectional=bidirectional)


def decode(name: str, kind: str = "A", **fields: bool) -> Engine:
    return engine(name, Role.DECODE, kind, **fields)


def plan(*engines: Engine, home: str = "", load: dict[str, int] | None = None) -> Plan:
    session = Session(KEY, home, "agent:1", f"{home}/1", 500, expires_at=100.0, retained_at=0.0)
    view = FleetView({one.engine_id: one for one in engines}, {KEY: session} if home else {})
    return plan_turn(view, TurnRequest("m", KEY), load or {}, Policy())


def test_scenario_15_ranks_behind_one_endpoint_are_engines_of_their_own() -> None:
    ranks = [engine(f"d{rank}", Role.DECODE, dp_rank=rank) for rank in range(4)]
    found = plan(*ranks, prefill("p"), home="d2", load={"d2": 9})
    assert found.decode.dp_rank == 2
    assert found.decision is Decision.PULL
    assert found.home is ranks[2]
    found = plan(*ranks, prefill("p"), load={"d0": 1, "d1": 1, "d3": 1})
    assert found.decode.dp_rank == 2


def test_a_prefill_engine_of_the_homes_class_is_chosen_however_busy() -> None:
    found = plan(decode("d", "B"), prefill("p1", "A"), prefill("p2", "B"), home="d", load={"p2": 9})
    assert prefill_of(found).engine_id == "p2"
    assert found.decision is Decision.PULL
    assert found.hands_over
    (other,) = [one for one in found.candidates if one.rejected]
    assert other.engine.engine_id == "p1"
    assert "class" in other.rejected


def test_the_class_of_the_decode_engine_counts_also_without_a_handle() -> None:
    found = plan(decode("d", "B"), prefill("p1", "A"), prefill("p2", "B"))
    assert prefill_of(found).engine_id == "p2"


def test_scenario_23_a_fleet_of_two_classes_recomputes_where_a_handle_exists() -> None:
    found = plan(decode("d", "B"), prefill("p", "A"), home="d")
    assert (found.decision, found.reason) == (Decision.RECOMPUTE, PlanReason.INCOMPATIBLE)
    assert found.handle_tokens == 500
    assert not found.hands_over
    assert not any(one.rejected for one in found.candidates)
    found = plan(decode("d", "B"), prefill("p", "A"))
    assert found.reason is PlanReason.NO_HANDLE
    assert not found.hands_over


def test_nothing_is_pulled_that_could_not_reach_the_decode_engine() -> None:
    home = decode("d1", "A", draining=True)
    found = plan(home, decode("d2", "B"), prefill("p", "A"), home="d1")
    assert found.decode.engine_id == "d2"
    assert found.reason is PlanReason.INCOMPATIBLE
    found = plan(home, decode("d2", "B"), prefill("p1", "A"), prefill("p2", "B"), home="d1")
    assert (prefill_of(found).engine_id, found.reason) == ("p2", PlanReason.INCOMPATIBLE)
    found = plan(home, decode("d2", "A"), prefill("p", "A"), home="d1")
    assert found.decode.engine_id == "d2"
    assert found.home is home  # a draining engine may still be pulled from


@pytest.mark.parametrize("which", ["prefill", "decode"])
def test_one_class_is_not_enough_both_must_be_bidirectional(which: str) -> None:
    found = plan(
        decode("d", bidirectional=which != "decode"),
        prefill("p", bidirectional=which != "prefill"),
        home="d",
    )
    assert found.reason is PlanReason.INCOMPATIBLE
    assert found.hands_over


def test_scenario_33_nobody_pulls_from_oneself() -> None:
    found = plan(decode("d"), prefill("p"), home="p")
    assert (found.decision, found.reason) == (Decision.RECOMPUTE, PlanReason.INCOMPATIBLE)
    assert (prefill_of(found).engine_id, found.decode.engine_id) == ("p", "d")
    assert found.home is None
    # Another engine may, and then the handle is worth a pull.
    found = plan(decode("d"), prefill("p"), prefill("q"), home="p", load={"p": 1})
    assert (prefill_of(found).engine_id, found.decision) == ("q", Decision.PULL)
