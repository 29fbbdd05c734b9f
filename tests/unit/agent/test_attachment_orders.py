"""What an engine is ordered, and what is believed of the answers."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.wait import DEADLINE_SECONDS
from tests.unit.agent.test_attachment import CLAIMED, World, named, update

from contraflow.agent.attachment import ORDER_SIZE
from contraflow.agent.mirror import ReleaseCause
from contraflow.core.errors import EngineUnresponsive
from contraflow.core.handle import State
from contraflow.v1 import engine_link_service_pb2 as pb

MANY = [f"decode-1/{number}" for number in range(2 * ORDER_SIZE + 1)]


def released(world: World, order: pb.AttachResponse) -> list[str]:
    """The engine obeys and answers; what the order named."""
    for handle_id in order.release.handle_ids:
        world.attachment.on_event(named(handle_id.partition("/")[2], State.RELEASED))
    answer = pb.ReleaseResult(call_id=order.release.call_id, handle_ids=order.release.handle_ids)
    world.requests.put_nowait(pb.AttachRequest(release_result=answer))
    return list(order.release.handle_ids)


def release_many(world: World, timeout: float | None = None) -> asyncio.Task[list[str]]:
    return asyncio.create_task(world.attachment.release(MANY, timeout, ReleaseCause.ORDERED))


async def test_many_handles_are_released_in_orders_each_after_the_answer_to_the_one_before() -> (
    None
):
    world = World()
    for handle_id in MANY:
        world.attachment.on_event(named(handle_id.partition("/")[2], State.RETAINED))
    call = release_many(world)
    sizes: list[int] = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        while sum(sizes) < len(MANY):
            sizes.append(len(released(world, await world.order())))
    assert sizes == [ORDER_SIZE, ORDER_SIZE, 1]
    assert await call == MANY
    causes = [one.release_cause for one in world.told if one.state is State.RELEASED]
    assert causes == [ReleaseCause.ORDERED] * len(MANY)


async def test_no_order_is_given_before_the_last_one_is_answered() -> None:
    world = World()
    call = release_many(world)
    order = await world.order()
    behind = asyncio.create_task(world.order())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not behind.done()
    released(world, order)
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert len((await behind).release.handle_ids) == ORDER_SIZE
    call.cancel()


async def test_the_time_for_a_release_is_that_of_all_its_orders() -> None:
    world = World()
    call = release_many(world, timeout=60.0)
    first = await world.order()
    world.clock.advance(60.0)
    released(world, first)
    with pytest.raises(EngineUnresponsive):
        await call


@pytest.mark.parametrize("then", [State.READ, State.RETAINED])
async def test_what_an_engine_says_after_a_grant_is_not_undone_by_it(then: State) -> None:
    world = World()
    call = world.ask()
    order = await world.order()
    world.requests.put_nowait(pb.AttachRequest(handle_update=update(State.CLAIMED, "c1")))
    world.grant(order)
    world.requests.put_nowait(pb.AttachRequest(handle_update=update(then)))
    assert (await call).handle.claim_id == "c1"
    assert [one.state for one in world.told] == [State.CLAIMED, then]
    known = world.attachment.mirror.get(CLAIMED.handle_id)
    assert (known.state if known else State.READ) is then
