"""Calls of the directory with generated messages: typed refusals, and it is as it was."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from contraflow.directory.config import DirectoryConfig
from contraflow.v1 import directory_service_pb2 as pb
from contraflow.v1 import session_pb2
from contraflow.v1.directory_service_pb2_grpc import DirectoryServiceStub
from contraflow.wire.convert import engine_to_proto
from tests.fuzz.calls import called, calls
from tests.fuzz.stage import Stage, staged
from tests.support.fake_engine_link import engine, session_key
from tests.support.running_directory import ANY_PORT, running_directory
from tests.support.wait import until_good

VALUES = {
    "engine_id": st.sampled_from(["stranger", "a/b"]),
    "boot_nonce": st.sampled_from(["n1", "n2"]),
    "role": st.sampled_from([1, 2]),
    "endpoint": st.sampled_from(["http://x:1", "http://", "https://x", "http://x:99999", "x"]),
    "agent_address": st.sampled_from(["x:1", "unix:/x", "\x00"]),
    "block_size": st.sampled_from([16]),
    "registration_id": st.sampled_from(["ffffffff", "-1", "0x7f", "1_0", "g"]),
    "session_key": st.sampled_from([session_key("chat"), session_key("good"), "x"]),
    "handle_id": st.sampled_from(["stranger/1"]),
    "page_token": st.sampled_from(["ZA==", "_w==", "zz", "é"]),
    "start_revision": st.sampled_from([0, 1, 2, 2**62]),
}
GOOD = engine("good")
KEY = session_key("good")


STRANGER = replace(engine("stranger"), agent_address="x:1")
SESSION = session_pb2.Session(
    session_key=session_key("chat"), engine_id="stranger", agent_address="x:1",
    handle_id="stranger/1", num_tokens=16, ttl=Duration(seconds=480), age=Duration(seconds=1),
)  # fmt: skip
SEEDS = (
    pb.RegisterEngineRequest(engine=engine_to_proto(STRANGER), ttl=Duration(seconds=5)),
    pb.RenewEngineRequest(registration_id="ffffffff"),
    pb.DeregisterEngineRequest(registration_id="ffffffff"),
    pb.PublishSessionsRequest(registration_id="ffffffff", sessions=[SESSION]),
    pb.WithdrawSessionsRequest(
        withdrawals=[pb.SessionWithdrawal(session_key=session_key("chat"), handle_id="x/1")]
    ),
    pb.ListEnginesRequest(page_size=1, page_token="ZA=="),
    pb.ListSessionsRequest(page_size=1, page_token="ZA=="),
    pb.WatchRequest(start_revision=1),
)


@dataclass(frozen=True, slots=True)
class DirectoryWorld:
    channel: grpc.aio.Channel

    async def serves_as_before(self) -> None:
        """An engine registers and publishes, is found and told of, and leaves with its record."""
        stub = DirectoryServiceStub(self.channel)
        message = engine_to_proto(GOOD)
        message.agent_address = "agent:1"
        registered = await stub.RegisterEngine(pb.RegisterEngineRequest(engine=message))
        session = session_pb2.Session(
            session_key=KEY, engine_id="good", agent_address="agent:1", handle_id="good/1"
        )
        published = await stub.PublishSessions(
            pb.PublishSessionsRequest(
                registration_id=registered.registration_id, sessions=[session]
            )
        )
        assert [status.code for status in published.statuses] == [0]
        await until_good(self._told, {"good", KEY}.issubset)
        await self.deregister(registered.registration_id)
        await until_good(self._told, {"good", KEY}.isdisjoint)

    async def deregister(self, registration_id: str) -> None:
        stub = DirectoryServiceStub(self.channel)
        await stub.DeregisterEngine(pb.DeregisterEngineRequest(registration_id=registration_id))

    async def _told(self) -> set[str]:
        """Ids and keys of a snapshot."""
        found = set[str]()
        watch = DirectoryServiceStub(self.channel).Watch(pb.WatchRequest(), timeout=30.0)
        async for response in watch:
            found |= {response.engine.engine_id, response.session.session_key}
            if response.HasField("snapshot_end"):
                break
        watch.cancel()
        return found


@asynccontextmanager
async def directory_world() -> AsyncIterator[DirectoryWorld]:
    config = DirectoryConfig(listen=ANY_PORT, store="memory")
    async with (
        running_directory(config) as address,
        grpc.aio.insecure_channel(str(address)) as channel,
    ):
        yield DirectoryWorld(channel)


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage[DirectoryWorld]]:
    yield from staged(directory_world())


any_call = calls(pb.DESCRIPTOR.services_by_name["DirectoryService"], VALUES, SEEDS)


@given(st.lists(any_call, min_size=1, max_size=8))
def test_any_calls_are_answered_or_refused_with_a_reason(
    stage: Stage[DirectoryWorld], several: list[tuple[MethodDescriptor, bytes]]
) -> None:
    here = stage.world

    async def example() -> None:
        for call in several:
            answer = await called(here.channel, *call)
            for registered in answer if isinstance(answer, list) else ():
                if isinstance(registered, pb.RegisterEngineResponse):
                    await here.deregister(registered.registration_id)
        await here.serves_as_before()

    stage.run(example())
