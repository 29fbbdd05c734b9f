"""Scenarios 4 and 11: one handle, many who want it. Two routers, fake engines, real handle
tables."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from tests.support.fake_engine import Received
from tests.support.owner import Owner, owned_world
from tests.support.router_world import SESSION, World, another_router
from tests.support.wait import until

from contraflow.core.handle import State

pytestmark = pytest.mark.integration


@dataclass
class Case:
    """Two routers that know of the handle of the turn ``first``."""

    routers: tuple[World, World]
    owner: Owner
    first: str

    @property
    def world(self) -> World:
        return self.routers[0]

    async def settled(self) -> dict[str, State]:
        """The handles once everything that was to be given back has been."""
        for router in self.routers:
            await router.app.close()
        return self.owner.handles()


@pytest.fixture
async def case() -> AsyncIterator[Case]:
    async with owned_world() as (world, owner), another_router(world) as other:
        first = await world.chat(**SESSION)
        owner.publish(world.replica, other.replica)
        yield Case((world, other), owner, first.plan["turn"])


async def test_scenario_04_a_hundred_turns_through_two_routers_read_one_handle_once(
    case: Case,
) -> None:
    answers = await asyncio.gather(*(case.routers[n % 2].chat(**SESSION) for n in range(100)))

    assert {answer.status for answer in answers} == {200}
    decisions = [answer.plan["decision"] for answer in answers]
    # Whoever comes late may get the handle of one that has already ended.
    assert len(set(case.owner.reads)) == len(case.owner.reads) == decisions.count("PULL")
    assert case.owner.reads.count(case.first) == 1


async def test_scenario_04_a_hundred_turns_before_any_has_ended(case: Case) -> None:
    """None is decoded before all have asked: there is one handle and no other."""
    go, asked = asyncio.Event(), len(case.owner.acquired)
    retain = case.world.decode.script.before_answer
    assert retain is not None

    async def wait(received: Received) -> None:
        await go.wait()
        await retain(received)

    case.world.decode.script.before_answer = wait
    turns = [asyncio.create_task(case.routers[n % 2].chat(**SESSION)) for n in range(100)]
    await until(lambda: len(case.owner.acquired) - asked == 100, "all have asked")
    go.set()
    answers = await asyncio.gather(*turns)

    assert {answer.status for answer in answers} == {200}
    assert sorted(answer.plan["decision"] for answer in answers) == ["PULL"] + ["RECOMPUTE"] * 99
    assert case.owner.reads == [case.first]


@pytest.mark.parametrize("other_router", [False, True])
async def test_scenario_04_a_turn_is_sent_again_after_its_handle_was_read(
    case: Case, other_router: bool
) -> None:
    """The client loses patience after P has read the handle and before D answers."""
    world, retain = case.world, case.world.decode.script.before_answer

    async def hang(received: Received) -> None:
        await asyncio.Event().wait()

    world.decode.script.before_answer = hang
    lost = asyncio.create_task(world.chat(**SESSION))
    await until(lambda: case.owner.reads == [case.first], "P has read")
    await until(lambda: len(world.decode.received) == 2, "D is asked")
    lost.cancel()
    await until(lambda: world.decode.last.disconnected, "the leg is aborted")
    world.decode.script.before_answer = retain

    again = await case.routers[other_router].chat(**SESSION)

    assert (again.status, again.plan["decision"]) == (200, "RECOMPUTE")
    assert case.owner.reads == [case.first]
    # The conversation goes on with the handle of the turn that was answered.
    assert await case.settled() == {again.plan["turn"]: State.RETAINED}


async def test_scenario_11_three_forks_at_once_each_have_a_handle_afterwards(
    case: Case,
) -> None:
    answers = await asyncio.gather(*(case.routers[n % 2].chat(**SESSION) for n in range(3)))

    assert {answer.status for answer in answers} == {200}
    assert case.owner.reads.count(case.first) <= 1
    made = {answer.plan["turn"] for answer in answers} - set(case.owner.reads)
    assert set(await case.settled()) >= made
