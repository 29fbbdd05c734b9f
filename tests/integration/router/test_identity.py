"""Ranks, classes and reused ids as a router meets them: fake engines and a fake agent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.router_world import SESSION, World, router_world

from contraflow.core.errors import EngineIdReused

pytestmark = pytest.mark.integration


def ranks(world: World, count: int) -> None:
    """Let both endpoints serve ``count`` ranks each."""
    for fake, name in ((world.prefill, "p"), (world.decode, "d")):
        for rank in range(count):
            world.know(replace(fake.engine, engine_id=f"{name}{rank + 1}", dp_rank=rank))


async def test_scenario_15_each_rank_behind_an_endpoint_is_addressed_on_its_own() -> None:
    async with router_world() as world:
        ranks(world, 3)
        world.know_session(engine_id="d3")
        answer = await world.chat(**SESSION)
        assert answer.plan["decode"] == "d3"
        assert world.decode.last.headers["x-data-parallel-rank"] == "2"
        assert world.agent.acquired[0].engine_id == "d3"
        first, left = answer.plan["prefill"], {"p1": "0", "p2": "1", "p3": "2"}
        assert world.prefill.last.headers["x-data-parallel-rank"] == left.pop(first)
        del world.replica.engines[first]
        answer = await world.chat(**SESSION)
        rank = world.prefill.last.headers["x-data-parallel-rank"]
        assert rank == left[answer.plan["prefill"]]


async def test_scenario_23_a_pair_of_two_classes_serves_without_a_claim() -> None:
    async with router_world() as world:
        world.know(replace(world.prefill.engine, compatibility_class="another"))
        world.know_session()
        answer = await world.chat(**SESSION)
        assert answer.status == 200
        assert answer.plan["decision"] == "RECOMPUTE"
        assert answer.plan["reason"] == "INCOMPATIBLE"
        assert not world.prefill.received
        assert not world.agent.acquired
        sent = dict(world.decode.last.params)
        assert sent.pop("contraflow")["session_key"]  # so that the next turn finds a handle
        assert sent == {"do_remote_decode": False, "do_remote_prefill": False}


async def test_a_prefill_engine_of_the_right_class_is_preferred() -> None:
    async with router_world() as world:
        world.know(replace(world.prefill.engine, engine_id="p0", compatibility_class="another"))
        world.know_session()
        answer = await world.chat(**SESSION)
        assert (answer.plan["prefill"], answer.plan["decision"]) == ("p1", "PULL")


async def test_an_engine_whose_id_is_reused_is_served_and_not_pulled_from() -> None:
    async with router_world() as world:
        world.know_session()
        world.agent.denial = EngineIdReused("seen with another boot nonce")
        answer = await world.chat(**SESSION)
        assert answer.status == 200
        assert (answer.plan["decode"], answer.plan["decision"]) == ("d1", "RECOMPUTE")
        assert answer.plan["denial"] == "ENGINE_ID_REUSED"
        assert "remote_block_ids" not in world.prefill.last.params
