"""The claim of a turn: denied, granted late, given back or left to end by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.support.router_world import SESSION, World, config_of, router_world
from tests.support.wait import until

from contraflow.core.errors import HandleClaimed, LeaseTooShort
from contraflow.core.instructions import Pull

pytestmark = pytest.mark.integration


def pull_report(outcome: str) -> Any:
    return lambda received: Pull(outcome, "d1") if "proof" in received.ours else None


@pytest.mark.parametrize("error", [HandleClaimed("claimed"), LeaseTooShort("short")])
async def test_a_denial_recomputes(world: World, error: Any) -> None:
    world.know_session()
    world.agent.denial = error

    answer = await world.chat(**SESSION)

    assert answer.status == 200
    assert answer.plan["decision"] == "RECOMPUTE"
    assert answer.plan["reason"] == "ACQUIRE_DENIED"
    assert answer.plan["denial"] == error.reason
    assert "remote_block_ids" not in world.prefill.last.params


async def test_an_agent_that_is_down_costs_no_turn(world: World) -> None:
    world.know_session()
    await world.stop_agent()

    answer = await world.chat(**SESSION)

    assert answer.status == 200
    assert answer.plan["reason"] == "ACQUIRE_TIMEOUT"
    assert answer.plan["denial"] == "UNREACHABLE"


async def test_a_silent_agent_is_left_at_the_deadline_and_its_late_claim_returned() -> None:
    config = msgspec.structs.replace(config_of(), acquire_deadline_seconds=0.05)
    async with router_world(config) as world:
        world.know_session()
        world.agent.hold = asyncio.Event()

        answer = await world.chat(**SESSION)

        assert answer.status == 200
        assert answer.plan["reason"] == "ACQUIRE_TIMEOUT"
        assert answer.plan["denial"] == "TIMEOUT"
        await until(lambda: bool(world.agent.returned), "the claim comes back")
        assert not world.agent.live


@pytest.mark.parametrize("outcome", ["DECLINED_MISMATCH", "DECLINED_SMALL", "DECLINED_NO_PROOF"])
async def test_a_declined_claim_is_returned(world: World, outcome: str) -> None:
    world.know_session()
    world.prefill.script.pull = pull_report(outcome)

    answer = await world.chat(**SESSION)

    assert answer.plan["outcome"] == outcome
    await until(lambda: not world.agent.live, "the claim comes back")
    assert world.agent.returned == [world.agent.acquired[0].claim_id]


async def test_a_failed_pull_is_not_returned(world: World) -> None:
    world.know_session()
    world.prefill.script.pull = pull_report("FAILED")
    assert (await world.chat(**SESSION)).plan["outcome"] == "FAILED"
    await world.app.close()
    assert world.agent.returned == []


async def test_a_claim_is_returned_if_prefill_can_not_be_reached(world: World) -> None:
    world.know_session()
    await world.prefill.stop()

    answer = await world.chat(**SESSION)

    assert (answer.status, answer.plan["reason"]) == (200, "PREFILL_UNREACHABLE")
    await until(lambda: not world.agent.live, "the claim comes back")
