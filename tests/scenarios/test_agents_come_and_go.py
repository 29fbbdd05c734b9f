"""Scenario 31: agents that restart while what they have granted is being read."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.support.clock import ManualClock
from tests.support.fake_engine_link import session_key
from tests.support.running_agent import RunningAgent, denied, eventually, running_agent
from tests.support.sim_pair import BLOCK, FakeLink, Pair, a_prompt, expected, running
from tests.support.wait import until

from contraflow.core.errors import Reason
from contraflow.core.instructions import Instructions
from contraflow.core.transfer_params import OURS, for_plain_decode, for_pulling_prefill
from contraflow.runtime.clock import SystemClock
from contraflow.sim.engine import SimEngine
from contraflow.sim.fabric import Connection, MemoryFabric, RemoteBlock
from contraflow.sim.options import SimOptions
from contraflow.v1 import agent_service_pb2 as pb
from contraflow.v1 import handle_pb2
from contraflow.wire.convert import proof_from_proto
from contraflow.wire.params import params_from_proto

pytestmark = pytest.mark.integration

TOLD = Instructions(tenant="acme", session_key=session_key("chat"), turn_id="t1")


class SlowFabric(MemoryFabric):
    """Reads begin, and end when they are let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = asyncio.Event()
        self.go_on = asyncio.Event()

    async def connect(self, host: str, port: int) -> Connection:
        connection = await super().connect(host, port)
        read = connection.read

        async def slowly(block_ids: Sequence[int]) -> list[RemoteBlock]:
            self.reading.set()
            await self.go_on.wait()
            return await read(block_ids)

        connection.read = slowly  # type: ignore[method-assign]
        return connection


@dataclass(frozen=True)
class World:
    """Two engines; the decode engine knows the agent at ``link`` only."""

    pair: Pair
    fabric: SlowFabric
    link: str

    async def retained(self) -> list[int]:
        """A turn has ended at D; the prompt of the next one."""
        prompt = a_prompt(3 * BLOCK)
        params = for_plain_decode() | {OURS: TOLD.to_json()}
        first = await self.pair.ask(self.pair.decode, prompt, params, max_tokens=40)
        return [*prompt, *first.tokens, *a_prompt(9)]

    async def knows(self, agent: RunningAgent, count: int) -> list[handle_pb2.Handle]:
        """The handles, once an agent knows so many."""

        async def as_expected() -> bool:
            return len(await agent.engines()) == 1 and len(await agent.handles()) == count

        await eventually(as_expected, f"the agent knows {count} handles")
        return list((await agent.stub.ListHandles(pb.ListHandlesRequest())).handles)

    async def claimed(self, agent: RunningAgent) -> pb.AcquireHandleResponse:
        """A grant to the claim "c1"."""
        return await agent.acquire("c1", "chat", engine_id=self.pair.decode.engine_id)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    os.chmod(tmp_path, 0o700)
    link, fabric = f"unix:{tmp_path}/l", SlowFabric()
    decode = SimEngine(
        SimOptions(
            engine_id="d", role="decode", block_size=BLOCK, agent=link, endpoint="http://[::1]:9"
        ),
        clock=SystemClock(),
        fabric=fabric,
    )
    prefill = SimEngine(
        SimOptions(engine_id="p", role="prefill", block_size=BLOCK),
        clock=SystemClock(),
        fabric=fabric,
        make_link=lambda *_: FakeLink(),
    )
    async with running([prefill, decode]):
        yield World(Pair(prefill, decode, ManualClock(), fabric), fabric, link)


async def test_scenario_31_a_read_outlives_the_agent_that_granted_it(world: World) -> None:
    pair, decode_id = world.pair, world.pair.decode.engine_id
    async with AsyncExitStack() as stack:
        async with running_agent(link=world.link) as agent:
            await world.knows(agent, 0)
            history = await world.retained()
            await world.knows(agent, 1)
            grant = await world.claimed(agent)
            proof = proof_from_proto(grant.proof)
            told = replace(TOLD, claim_id="c1", decision="PULL", proof=proof)
            params = for_pulling_prefill(params_from_proto(grant.transfer_params))
            leg = pair.ask(pair.prefill, history, params | {OURS: told.to_json()}, max_tokens=1)
            reading = asyncio.create_task(leg)
            await until(world.fabric.reading.is_set, "the read has begun")

        later = await stack.enter_async_context(running_agent(link=world.link))
        (handle,) = await world.knows(later, 1)
        assert (handle.state, handle.claim_id) == (handle_pb2.HANDLE_STATE_CLAIMED, "c1")
        other = later.acquire("c2", "chat", engine_id=decode_id)
        assert await denied(other) is Reason.HANDLE_CLAIMED
        released = await later.stub.ReleaseHandles(
            pb.ReleaseHandlesRequest(handle_ids=[handle.handle_id])
        )
        assert not released.released_handle_ids
        assert not reading.done()

        world.fabric.go_on.set()
        answer = await reading

        assert answer.pull["outcome"] == "PULLED"
        assert answer.tokens == await expected(history, 1)
        await world.knows(later, 0)
        gone = later.acquire("c3", "chat", engine_id=decode_id)
        assert await denied(gone) is Reason.HANDLE_NOT_FOUND
        await pair.nothing_is_held(pair.decode)


async def test_scenario_31_a_second_agent_can_not_take_an_engine_from_a_live_one(
    world: World,
) -> None:
    async with running_agent(link=world.link) as agent, running_agent() as other:
        await world.knows(agent, 0)
        await world.retained()
        await world.knows(agent, 1)
        assert await other.engines() == []
        theirs = other.acquire("c2", "chat", engine_id=world.pair.decode.engine_id)
        assert await denied(theirs) is Reason.ENGINE_NOT_ATTACHED
        assert (await world.claimed(agent)).handle.claim_id == "c1"
