"""Scenarios 32 and 33: records that are behind, and records that name the prefill engine."""

from __future__ import annotations

import pytest
from tests.support.owner import owned_world
from tests.support.router_world import SESSION, another_router, router_world

from contraflow.core.handle import State

pytestmark = pytest.mark.integration


async def test_scenario_32_the_owner_finds_the_newest_handle_behind_a_stale_hint() -> None:
    async with owned_world() as (world, owner), another_router(world) as other:
        first = await world.chat(**SESSION)
        owner.publish(other.replica)
        second = await world.chat(**SESSION)

        third = await other.chat(**SESSION)

        assert owner.acquired[-1].hint_handle_id.endswith(first.plan["turn"])
        assert third.plan["decision"] == "PULL"
        assert owner.reads == [first.plan["turn"], second.plan["turn"]]
        assert owner.handles() == {third.plan["turn"]: State.RETAINED}


async def test_scenario_32_a_router_that_has_heard_nothing_recomputes() -> None:
    async with owned_world() as (world, owner), another_router(world) as other:
        first = await world.chat(**SESSION)

        second = await other.chat(**SESSION)

        assert (second.plan["decision"], second.plan["reason"]) == ("RECOMPUTE", "NO_HANDLE")
        assert owner.reads == []
        # And the conversation goes on at either router, from the newest.
        third = await other.chat(**SESSION)
        assert third.plan["decision"] == "PULL"
        assert owner.reads == [second.plan["turn"]]
        assert first.plan["turn"] not in owner.reads


async def test_scenario_33_nobody_pulls_from_oneself() -> None:
    async with router_world() as world:
        world.know_session(engine_id="p1")
        answer = await world.chat(**SESSION)
        assert answer.status == 200
        assert answer.plan["decision"] == "RECOMPUTE"
        assert (answer.plan["prefill"], answer.plan["decode"]) == ("p1", "d1")
        assert not world.agent.acquired
        assert "remote_block_ids" not in world.prefill.last.params
