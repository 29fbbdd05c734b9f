"""What comes over the agent's unix socket: any messages in any order, from any engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from contraflow.core.errors import Reason
from contraflow.v1 import engine_link_service_pb2 as pb
from contraflow.v1 import handle_pb2
from contraflow.wire.convert import engine_to_proto
from tests.fuzz.calls import reason_of
from tests.fuzz.messages import sent
from tests.fuzz.stage import Stage, staged
from tests.support.fake_engine_link import FakeEngineLink, engine, session_key
from tests.support.running_agent import RunningAgent, running_agent

ATTACH = "/contraflow.v1.EngineLinkService/Attach"
MESSAGE = pb.DESCRIPTOR.message_types_by_name["AttachRequest"]
VALUES = {
    "engine_id": st.sampled_from(["stranger", "a/b"]),
    "boot_nonce": st.sampled_from(["n1", "n2"]),
    "role": st.sampled_from([1, 2]),
    "endpoint": st.sampled_from(["http://127.0.0.1:8", "http://[::1]:8", "http://x:0", "http://["]),
    "handle_id": st.sampled_from(["stranger/1", "stranger/2", "decode-1/request-1"]),
    "session_key": st.sampled_from([session_key("chat"), "x"]),
    "state": st.integers(0, 8),
    "claim_id": st.sampled_from(["", "c-1"]),
    "call_id": st.integers(0, 3),
}
STRANGER = replace(engine("stranger"), endpoint="http://127.0.0.1:8")
HELLO = pb.AttachRequest(hello=pb.Hello(engine=engine_to_proto(STRANGER))).SerializeToString()
HANDLE = handle_pb2.Handle(
    handle_id="stranger/1", engine_id="stranger", remote_request_id="1", tenant="acme",
    session_key=session_key("chat"), num_tokens=16, num_blocks=1, ttl=Duration(seconds=480),
    state=handle_pb2.HANDLE_STATE_RETAINED,
)  # fmt: skip
SEEDS = (
    pb.AttachRequest(hello=pb.Hello(engine=engine_to_proto(STRANGER), handles=[HANDLE])),
    pb.AttachRequest(handle_update=pb.HandleUpdate(handle=HANDLE)),
    pb.AttachRequest(pull_report=handle_pb2.PullReport(turn_id="t", bytes=1)),
    pb.AttachRequest(acquire_result=pb.AcquireResult(call_id=1)),
)
messages = sent(MESSAGE, VALUES, SEEDS)
links = st.tuples(st.just(HELLO) | messages, st.lists(messages, min_size=3, max_size=12))


@dataclass(frozen=True, slots=True)
class LinkWorld:
    agent: RunningAgent
    engine: FakeEngineLink
    channel: grpc.aio.Channel

    async def attach(self, messages: list[bytes]) -> Reason | None:
        """How a link ends on which just these are sent."""
        call = self.channel.stream_stream(ATTACH, lambda data: data, pb.AttachResponse.FromString)(
            _each(messages), timeout=30.0
        )
        try:
            async for _ in call:
                pass
        except grpc.aio.AioRpcError as error:
            # The client's own word for a message that it could not send: the link had ended.
            return None if error.details() == "Internal error from Core" else reason_of(error)
        return None

    async def serves_as_before(self) -> None:
        """The good engine's handle is told of, claimed and given back."""
        handle = self.engine.retain("good")
        granted = await self.agent.acquire("good", "good")
        assert granted.handle.handle_id == handle.handle_id
        await self.agent.give_back("good")
        assert await self.agent.handles() == [handle.handle_id]
        assert [one.engine.engine_id for one in await self.agent.engines()] == ["decode-1"]


async def _each(messages: list[bytes]) -> AsyncIterator[bytes]:
    for message in messages:
        yield message


@asynccontextmanager
async def link_world() -> AsyncIterator[LinkWorld]:
    link = FakeEngineLink(engine())
    async with (
        running_agent() as agent,
        link.attached(agent.link),
        grpc.aio.insecure_channel(agent.link) as channel,
    ):
        yield LinkWorld(agent, link, channel)


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage[LinkWorld]]:
    yield from staged(link_world())


@given(links)
def test_any_messages_end_the_link_or_are_passed_over(
    stage: Stage[LinkWorld], said: tuple[bytes, list[bytes]]
) -> None:
    here = stage.world
    first, later = said

    async def example() -> None:
        await here.attach([first, *later])
        await here.serves_as_before()

    stage.run(example())
