"""The client leaves: during acquire, before and in the legs, in mid-stream, at the end."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.support.fake_engine import Received, hang
from tests.support.router_world import KEY, SESSION, World, config_of, router_world
from tests.support.wait import until

from contraflow.web import ClientLimits

pytestmark = pytest.mark.integration


async def test_a_client_that_leaves_during_acquire(world: World) -> None:
    world.know_session()
    world.agent.hold = asyncio.Event()
    task = asyncio.create_task(world.chat(**SESSION))
    await until(lambda: bool(world.agent.live), "the claim is made")

    task.cancel()

    await until(lambda: not world.agent.live, "the claim comes back")
    assert not world.prefill.received


async def test_a_client_that_leaves_before_prefill_is_sent() -> None:
    # The only connection to the engine is taken by another turn, so the second one waits for it.
    limits = ClientLimits(max_connections=1)
    async with router_world(msgspec.structs.replace(config_of(), engines=limits)) as world:
        world.know_session()
        world.prefill.script.before_answer = hang
        first = asyncio.create_task(world.chat())
        await until(lambda: bool(world.prefill.received), "the connection is taken")
        second = asyncio.create_task(world.chat(**SESSION))
        await until(lambda: bool(world.agent.live), "the claim is made")

        second.cancel()

        await until(lambda: not world.agent.live, "the claim comes back")
        assert len(world.prefill.received) == 1
        first.cancel()


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_a_client_that_leaves_ends_the_leg_that_runs(world: World, leg: str) -> None:
    world.know_session()
    engine = world.prefill if leg == "prefill" else world.decode
    engine.script.before_answer = hang
    task = asyncio.create_task(world.chat(**SESSION))
    await until(lambda: bool(engine.received), f"{leg} runs")

    task.cancel()

    await until(lambda: engine.last.disconnected, f"{leg} is aborted")
    assert bool(world.decode.received) is (leg == "decode")
    await world.app.close()
    assert world.agent.returned == []  # bytes were sent: it ends by itself
    assert world.app.homes.by_key == {}


async def test_a_client_that_leaves_in_mid_stream(world: World) -> None:
    world.decode.script.between_chunks = hang
    body = {"model": "tiny", "messages": [], "stream": True, **SESSION}
    async with world.client.post(f"{world.url}/v1/chat/completions", json=body) as response:
        assert (await response.content.readline()).startswith(b"data: ")
        response.close()
    await until(lambda: world.decode.last.disconnected, "decode is aborted")
    assert world.app.homes.by_key == {}


async def test_scenario_12_a_client_that_leaves_at_the_last_event_has_had_its_turn(
    world: World,
) -> None:
    ended = asyncio.Event()

    async def end_later(received: Received) -> None:
        await ended.wait()

    world.decode.script.before_end = end_later
    body = {"model": "tiny", "messages": [], "stream": True, **SESSION}
    async with world.client.post(f"{world.url}/v1/chat/completions", json=body) as response:
        raw = await response.read()  # the engine's own end is not waited for
    assert raw.endswith(b"data: [DONE]\n\n")
    ended.set()
    await until(lambda: world.app.homes.by_key == {KEY: "d1"}, "the home is remembered")
