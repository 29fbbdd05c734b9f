"""Scenario 12: the edges of a stream, through a whole router. The handle of a turn is learned
from its owner, never from the stream, however that is cut."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.fake_engine import Received
from tests.support.owner import Owner, owned_world
from tests.support.router_world import SESSION, World
from tests.support.wait import until

pytestmark = pytest.mark.integration

BODY: dict[str, Any] = {"model": "tiny", "messages": [], "stream": True, **SESSION}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with owned_world() as (world, _):
        world.decode.script.vllm = "0.33"  # its streams carry the parameters
        yield world


def owner_of(world: World) -> Owner:
    assert isinstance(world.agent, Owner)
    return world.agent


async def next_turn_pulls(world: World) -> bool:
    owner_of(world).publish(world.replica)
    return (await world.chat(**SESSION)).plan["decision"] == "PULL"


@pytest.mark.parametrize("size", [1, 7, 100, 1460])
async def test_scenario_12_a_handle_that_is_split_across_reads(world: World, size: int) -> None:
    params = world.decode.own_params

    def pieces(received: Received) -> list[bytes]:
        whole = b"".join(world.decode.stream_chunks(params(received)))
        return [whole[at : at + size] for at in range(0, len(whole), size)]

    async def arrive(received: Received) -> None:
        await asyncio.sleep(0)

    world.decode.script.events = pieces
    world.decode.script.between_chunks = arrive

    answer = await world.chat(**SESSION, stream=True)

    sent = world.decode.stream_chunks(None)
    events = [one + b"\n\n" for one in answer.raw.split(b"\n\n")[:-1]]
    assert events[:3] == sent[:3]
    assert events[4:] == sent[4:]  # the usage chunk after the handle, and the end
    assert b"kv_transfer_params" not in answer.raw
    assert await next_turn_pulls(world)


async def test_scenario_12_the_first_chunk_arrives_before_the_stream_ends(world: World) -> None:
    go = asyncio.Event()

    async def hold(received: Received) -> None:
        await go.wait()

    world.decode.script.between_chunks = hold
    async with world.client.post(f"{world.url}/v1/chat/completions", json=BODY) as response:
        assert (await response.content.readuntil(b"\n\n")).startswith(b"data: ")
        assert not world.decode.last.finished
        go.set()
        rest = await response.read()
    assert rest.endswith(b"data: [DONE]\n\n")
    assert await next_turn_pulls(world)


async def test_scenario_12_a_4_mb_chunk_passes_whole(world: World) -> None:
    huge = {"choices": [{"index": 0, "delta": {"content": "\u00e9x" * 2_000_000}}]}
    data = b"data: " + json.dumps(huge).encode() + b"\n\n"
    assert len(data) > 4 * 2**20
    params = world.decode.own_params

    def events(received: Received) -> list[bytes]:
        first, *rest = world.decode.stream_chunks(params(received))
        return [first, data, *rest]

    world.decode.script.events = events

    answer = await world.chat(**SESSION, stream=True)

    assert data in answer.raw
    assert answer.raw.endswith(b"data: [DONE]\n\n")
    assert await next_turn_pulls(world)


async def test_scenario_12_the_client_is_gone_before_the_chunk_with_the_handle(
    world: World,
) -> None:
    """The owner never finished the turn, so there is nothing to offer."""
    retain = world.decode.script.before_answer
    assert retain is not None
    world.decode.script.before_answer = None  # an engine retains at the end, which never comes

    async def hold(received: Received) -> None:
        await asyncio.Event().wait()

    world.decode.script.between_chunks = hold
    async with world.client.post(f"{world.url}/v1/chat/completions", json=BODY) as response:
        await response.content.readuntil(b"\n\n")
        response.close()
    await until(lambda: world.decode.last.disconnected, "decode is aborted")
    world.decode.script.before_answer, world.decode.script.between_chunks = retain, None

    assert not await next_turn_pulls(world)
    assert await next_turn_pulls(world)
