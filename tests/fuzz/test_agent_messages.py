"""Calls of the agent with generated messages: typed refusals, and the agent is as it was."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from contraflow.core.handle import State
from contraflow.v1 import agent_service_pb2 as pb
from tests.fuzz.calls import called, calls
from tests.fuzz.stage import Stage, staged
from tests.support.directory_content import directory_at, free_address
from tests.support.fake_engine_link import FakeEngineLink, HealthEndpoint, engine, session_key
from tests.support.running_agent import RunningAgent, running_agent

KNOWN = "chat"
VALUES = {
    "engine_id": st.sampled_from(["decode-1", "other"]),
    "session_key": st.sampled_from([session_key(KNOWN), session_key("other"), "0" * 31]),
    "tenant": st.sampled_from(["acme", "other"]),
    "handle_id": st.sampled_from(["decode-1/request-1", "decode-1/gone", "other/request-1"]),
    "handle_ids": st.sampled_from(["decode-1/gone", "other/request-1", "decode-1/"]),
    "claim_id": st.sampled_from(["c-1", "c-2"]),
    "page_token": st.sampled_from(["ZA==", "_w==", "zz"]),
}


SEEDS = (
    pb.AcquireHandleRequest(
        claim_id="c-1", tenant="acme", session_key=session_key(KNOWN), engine_id="decode-1",
        message_digests=["d"], start_by=Duration(seconds=60),
    ),
    pb.ReturnClaimRequest(claim_id="c-1", engine_id="decode-1"),
    pb.ReleaseHandlesRequest(handle_ids=["decode-1/gone"]),
    pb.ListHandlesRequest(page_size=1, page_token="ZA==", session_key=session_key(KNOWN)),
    pb.GetHandleRequest(handle_id="decode-1/request-1"),
    pb.WatchHandlesRequest(session_key=session_key(KNOWN)),
    pb.DrainEngineRequest(engine_id="decode-1", draining=True),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AgentWorld:
    agent: RunningAgent
    engine: FakeEngineLink
    channel: grpc.aio.Channel

    async def serves_as_before(self) -> None:
        """A handle is told of, claimed once, given back, and released; then nothing is left."""
        for handle in self.engine.table.live():
            if handle.claim is not None:  # granted to a generated call
                await self.agent.give_back(handle.claim.claim_id)
        await self.agent.stub.DrainEngine(pb.DrainEngineRequest(engine_id="decode-1"))
        handle = self.engine.retain("good")
        granted = await self.agent.acquire("good", "good")
        assert granted.handle.handle_id == handle.handle_id
        assert self.engine.state_of(handle) is State.CLAIMED
        await self.agent.give_back("good")
        everything = [one.handle_id for one in self.engine.table.live()]
        released = await self.agent.stub.ReleaseHandles(
            pb.ReleaseHandlesRequest(handle_ids=everything)
        )
        assert set(released.released_handle_ids) == set(everything)
        assert not self.engine.table.live()
        assert not await self.agent.handles()
        [attached] = await self.agent.engines()
        assert attached.engine.engine_id == "decode-1"
        assert not attached.engine.draining


@asynccontextmanager
async def agent_world() -> AsyncIterator[AgentWorld]:
    address = free_address()
    async with HealthEndpoint().serving() as health:
        link = FakeEngineLink(engine(endpoint=health.url))
        async with (
            directory_at(address),
            running_agent([address]) as agent,
            link.attached(agent.link),
            grpc.aio.insecure_channel(agent.address) as channel,
        ):
            yield AgentWorld(agent, link, channel)


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage[AgentWorld]]:
    yield from staged(agent_world())


any_call = calls(pb.DESCRIPTOR.services_by_name["AgentService"], VALUES, SEEDS)


@given(st.lists(any_call, min_size=1, max_size=8))
def test_any_calls_are_answered_or_refused_with_a_reason(
    stage: Stage[AgentWorld], several: list[tuple[MethodDescriptor, bytes]]
) -> None:
    here = stage.world

    async def example() -> None:
        here.engine.retain(KNOWN)
        for call in several:
            await called(here.channel, *call)
        await here.serves_as_before()

    stage.run(example())
