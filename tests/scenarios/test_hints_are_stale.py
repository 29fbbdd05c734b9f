"""Scenarios 32 and 33: records that are behind, and records that name the prefill engine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.fake_engine import FakeEngine
from tests.support.owner import owned_world
from tests.support.router_world import SESSION, another_router, router_world

from contraflow.core.fleet import Role
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


async def test_scenario_32_a_record_of_the_home_before_is_denied_by_its_owner() -> None:
    """The conversation has moved to another engine, and this router has not heard of it."""
    async with (
        owned_world() as (world, owner),
        another_router(world) as other,
        FakeEngine("d2", Role.DECODE, agent_address=world.agent_address) as moved_to,
    ):
        owner.attach(moved_to)
        await world.chat(**SESSION)
        owner.publish(other.replica)
        world.know(moved_to.engine, replace(world.decode.engine, draining=True))
        second = await world.chat(**SESSION)
        assert (second.plan["decode"], second.plan["decision"]) == ("d2", "PULL")

        third = await other.chat(**SESSION)

        assert third.status == 200
        assert (third.plan["decode"], third.plan["decision"]) == ("d2", "RECOMPUTE")
        assert third.plan["denial"] == "HANDLE_NOT_FOUND"
        fourth = await other.chat(**SESSION)
        assert fourth.plan["decision"] == "PULL"
        assert owner.reads[-1] == third.plan["turn"]


async def test_scenario_33_nobody_pulls_from_oneself() -> None:
    async with router_world() as world:
        world.know_session(engine_id="p1")
        answer = await world.chat(**SESSION)
        assert answer.status == 200
        assert answer.plan["decision"] == "RECOMPUTE"
        assert (answer.plan["prefill"], answer.plan["decode"]) == ("p1", "d1")
        assert not world.agent.acquired
        assert "remote_block_ids" not in world.prefill.last.params
