"""What GetServerInfo tells of a directory is what the directory enforces."""

from __future__ import annotations

import grpc
import pytest
from tests.support.fake_engine_link import engine, session_key
from tests.support.running_agent import denied, eventually
from tests.support.running_directory import ANY_PORT, running_directory, until_healthy

from contraflow.core.errors import Reason
from contraflow.directory.config import DirectoryConfig, LimitsConfig
from contraflow.v1 import directory_service_pb2 as pb
from contraflow.v1 import session_pb2
from contraflow.v1.directory_service_pb2_grpc import DirectoryServiceStub
from contraflow.v1.server_info_service_pb2 import GetServerInfoRequest
from contraflow.v1.server_info_service_pb2_grpc import ServerInfoServiceStub
from contraflow.wire.convert import engine_to_proto

pytestmark = pytest.mark.integration


async def test_the_limits_that_the_directory_tells_are_those_it_enforces() -> None:
    config = DirectoryConfig(
        listen=ANY_PORT, store="memory", log_level="error",
        limits=LimitsConfig(max_message_bytes=64 * 1024, max_batch_items=100, max_page_size=2),
    )  # fmt: skip
    async with running_directory(config) as address:
        await until_healthy(address)
        async with grpc.aio.insecure_channel(str(address)) as channel:
            info = await ServerInfoServiceStub(channel).GetServerInfo(GetServerInfoRequest())
            assert info.component == "directory"
            assert list(info.features) == ["store:memory"]
            limits = info.limits
            stub = DirectoryServiceStub(channel)
            described = engine_to_proto(engine())
            described.agent_address = "agent:1"
            registration = await stub.RegisterEngine(pb.RegisterEngineRequest(engine=described))

            def publish(count: int) -> pb.PublishSessionsRequest:
                sessions = [
                    session_pb2.Session(
                        session_key=session_key(str(number)), engine_id="decode-1",
                        agent_address="agent:1", handle_id="decode-1/1",
                    )
                    for number in range(count)
                ]  # fmt: skip
                return pb.PublishSessionsRequest(
                    registration_id=registration.registration_id, sessions=sessions
                )

            answer = await stub.PublishSessions(publish(limits.max_batch_items))
            assert not any(status.code for status in answer.statuses)
            too_many = publish(limits.max_batch_items + 1)
            assert await denied(stub.PublishSessions(too_many)) is Reason.INVALID_ARGUMENT
            gone = [pb.SessionWithdrawal(session_key="x", handle_id="y")]
            withdraw = pb.WithdrawSessionsRequest(withdrawals=gone * (limits.max_batch_items + 1))
            assert await denied(stub.WithdrawSessions(withdraw)) is Reason.INVALID_ARGUMENT

            async def in_pages() -> bool:
                page = await stub.ListSessions(pb.ListSessionsRequest(page_size=50))
                assert len(page.sessions) <= limits.max_page_size
                return len(page.sessions) == limits.max_page_size and bool(page.next_page_token)

            await eventually(in_pages, "the sessions are listed, in pages")
            too_long = pb.GetEngineRequest(engine_id="x" * limits.max_message_bytes)
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await stub.GetEngine(too_long)
            assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
