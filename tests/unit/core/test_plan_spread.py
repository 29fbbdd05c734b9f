"""Engines that are equally busy: sessions are spread over them, and each keeps its own."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.support.plans import prefill_of

from contraflow.core.fleet import Engine, FleetView, Role
from contraflow.core.plan import Policy, TurnRequest, plan_turn, without

SESSIONS = [f"{number:032x}" for number in range(300)]


def engine(role: Role, number: int) -> Engine:
    name = f"{role}-{number}"
    return Engine(name, "n", role, f"http://{name}", served_models=("m",), bidirectional=True)


def fleet(*, of_each_role: int) -> FleetView:
    engines = [engine(role, number) for role in Role for number in range(of_each_role)]
    return FleetView(engines={one.engine_id: one for one in engines})


def chosen(view: FleetView, session: str, load: dict[str, int] | None = None) -> tuple[str, str]:
    plan = plan_turn(view, TurnRequest("m", session), load or {}, Policy())
    return prefill_of(plan).engine_id, plan.decode.engine_id


def test_an_idle_fleet_shares_the_sessions() -> None:
    view = fleet(of_each_role=3)
    pairs = [chosen(view, session) for session in SESSIONS]

    for role in (0, 1):
        shares = Counter(pair[role] for pair in pairs)
        assert len(shares) == 3
        assert min(shares.values()) > len(SESSIONS) / 5
    assert len(set(pairs)) == 9  # where one leg goes says nothing of the other


def test_another_engine_takes_sessions_and_moves_no_others() -> None:
    few, more = fleet(of_each_role=3), fleet(of_each_role=4)
    for session in SESSIONS:
        for before, after in zip(chosen(few, session), chosen(more, session), strict=True):
            assert after == before or after.endswith("-3")


def test_the_less_busy_engine_goes_first() -> None:
    load = {"decode-0": 1, "decode-1": 1, "prefill-1": 1, "prefill-2": 1}
    view = fleet(of_each_role=3)

    assert {chosen(view, session, load) for session in SESSIONS} == {("prefill-0", "decode-2")}


@pytest.mark.parametrize("role", Role)
def test_the_sessions_of_an_engine_that_is_down_are_shared_by_the_others(role: Role) -> None:
    view = fleet(of_each_role=4)
    moved = Counter[str]()
    for session in SESSIONS:
        plan = plan_turn(view, TurnRequest("m", session), {}, Policy())
        down = plan.decode if role is Role.DECODE else prefill_of(plan)
        if not down.engine_id.endswith("-3"):
            continue
        other = without(plan, down)
        assert other is not None
        moved[(other.decode if role is Role.DECODE else prefill_of(other)).engine_id] += 1

    assert set(moved) == {f"{role}-{number}" for number in range(3)}
    assert min(moved.values()) > moved.total() / 6
