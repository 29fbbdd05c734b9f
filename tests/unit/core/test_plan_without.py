"""What takes the place of an engine that refuses connections."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contraflow.core.fleet import Engine, FleetView, Role
from contraflow.core.plan import Plan, Policy, TurnRequest, plan_turn, without


def engine(name: str, role: Role, node: str, dp_rank: int = 0) -> Engine:
    return Engine(name, "n", role, f"http://{node}", dp_rank=dp_rank, served_models=("m",))


P, D = engine("p", Role.PREFILL, "a"), engine("d", Role.DECODE, "b")


def plan(*engines: Engine) -> Plan:
    view = FleetView({one.engine_id: one for one in engines})
    return plan_turn(view, TurnRequest("m"), {}, Policy(), now=0.0)


@pytest.mark.parametrize("first", [P, D])
def test_all_ranks_of_an_endpoint_are_left_out_with_it(first: Engine) -> None:
    rank = replace(first, engine_id=f"{first.engine_id}-rank", dp_rank=1)
    other = engine(f"{first.engine_id}-z", first.role, "elsewhere")
    found = without(plan(P, D, rank, other), first)
    assert found is not None
    assert (found.prefill if first is P else found.decode) == other
    assert without(plan(P, D, rank), first) is None
