"""What the agent refuses, and that it lives on."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from tests.support.fake_engine_link import FakeEngineLink, engine, session_key
from tests.support.running_agent import denied, eventually, running_agent

from contraflow.agent.private_socket import require_private_folder
from contraflow.core.errors import InvalidArgument, Reason
from contraflow.runtime.address import Address
from contraflow.runtime.config import ConfigError, PortInUse
from contraflow.runtime.grpc_errors import from_rpc_error
from contraflow.v1 import agent_service_pb2 as pb
from contraflow.v1 import engine_link_service_pb2 as link_pb
from contraflow.v1 import engine_pb2, handle_pb2
from contraflow.v1.engine_link_service_pb2_grpc import EngineLinkServiceStub
from contraflow.wire.convert import engine_to_proto

pytestmark = pytest.mark.integration

ENGINE = engine_to_proto(engine())


def hello(change: Callable[[engine_pb2.Engine], None]) -> link_pb.AttachRequest:
    changed = engine_pb2.Engine()
    changed.CopyFrom(ENGINE)
    change(changed)
    return link_pb.AttachRequest(hello=link_pb.Hello(engine=changed))


def setting(name: str, value: object) -> Callable[[engine_pb2.Engine], None]:
    return lambda message: setattr(message, name, value)


FIRST_MESSAGES = {
    "hello": link_pb.AttachRequest(
        handle_update=link_pb.HandleUpdate(handle=handle_pb2.Handle(handle_id="e/1"))
    ),
    "hello.engine.role": hello(setting("role", 0)),
    "hello.engine.engine_id": hello(setting("engine_id", "")),
    "hello.engine.boot_nonce": hello(setting("boot_nonce", "n" * 2000)),
    "hello.engine.endpoint": hello(setting("endpoint", "127.0.0.1:8000")),
}


async def attach(target: str, *messages: link_pb.AttachRequest) -> Exception | None:
    """How a link ends on which just these messages are sent."""

    async def requests() -> AsyncIterator[link_pb.AttachRequest]:
        for message in messages:
            yield message

    async with grpc.aio.insecure_channel(target) as channel:
        try:
            async for _ in EngineLinkServiceStub(channel).Attach(requests()):
                pass
        except grpc.aio.AioRpcError as error:
            return from_rpc_error(error)
    return None


@pytest.mark.parametrize("field", FIRST_MESSAGES)
async def test_a_link_begins_with_a_sound_hello(field: str) -> None:
    async with running_agent() as agent:
        error = await attach(agent.link, FIRST_MESSAGES[field])
        assert isinstance(error, InvalidArgument)
        assert error.metadata == {"field": field}
        assert not await agent.engines()


async def test_a_link_that_says_nothing_is_refused() -> None:
    async with running_agent() as agent:
        assert isinstance(await attach(agent.link), InvalidArgument)


async def test_slashes_in_engine_ids_are_refused() -> None:
    async with running_agent() as agent:
        error = await attach(agent.link, hello(setting("engine_id", "a/b")))
        assert isinstance(error, InvalidArgument)


async def test_garbage_on_a_link_is_passed_over() -> None:
    decode = FakeEngineLink(engine())
    async with running_agent() as agent, decode.attached(agent.link):
        decode.say(link_pb.AttachRequest())
        decode.say(hello(lambda _: None))
        decode.say(link_pb.AttachRequest(acquire_result=link_pb.AcquireResult(call_id=2**64 - 1)))
        decode.say(link_pb.AttachRequest(handle_update=link_pb.HandleUpdate()))
        for state, engine_id in ((99, "decode-1"), (handle_pb2.HANDLE_STATE_RETAINED, "other")):
            handle = handle_pb2.Handle(
                handle_id="x/1", engine_id=engine_id, num_tokens=2**64 - 1, num_blocks=2**32 - 1
            )
            handle.ttl.CopyFrom(Duration(seconds=-(2**63)))
            handle.state = state  # type: ignore[assignment]
            update = link_pb.HandleUpdate(handle=handle)
            decode.say(link_pb.AttachRequest(handle_update=update))
        decode.report(1000)  # type: ignore[arg-type]
        known = decode.retain("chat")

        async def heard() -> bool:
            return bool(await agent.handles())

        await eventually(heard, "what came after the garbage")
        assert await agent.handles() == [known.handle_id]
        assert dict((await agent.engines())[0].pulls) == {"UNKNOWN_1000": 1}


ACQUIRE = pb.AcquireHandleRequest(
    claim_id="c", tenant="acme", session_key=session_key("chat"), engine_id="decode-1"
)
BAD_ACQUIRES = [
    ("claim_id", ""),
    ("claim_id", "c" * 5000),
    ("tenant", ""),
    ("engine_id", ""),
    ("session_key", "chat"),
    ("session_key", "A" * 32),
    ("message_digests", ["d" * 5000]),
    ("message_digests", ["d"] * 17),
    ("hint_handle_id", "h" * 5000),
    ("start_by", Duration()),
    ("start_by", Duration(seconds=-5)),
]


async def test_malformed_acquires_name_the_field() -> None:
    async with running_agent() as agent, FakeEngineLink(engine()).attached(agent.link):
        for field, value in BAD_ACQUIRES:
            request = pb.AcquireHandleRequest()
            request.CopyFrom(ACQUIRE)
            if isinstance(value, Duration):
                request.start_by.CopyFrom(value)
            elif isinstance(value, list):
                request.message_digests.extend(value)
            else:
                setattr(request, field, value)
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await agent.stub.AcquireHandle(request)
            error = from_rpc_error(failure.value)
            assert (error.reason, error.metadata) == (Reason.INVALID_ARGUMENT, {"field": field})


async def test_other_malformed_requests_are_refused() -> None:
    async with running_agent() as agent, FakeEngineLink(engine()).attached(agent.link):
        stub = agent.stub
        calls: list[Awaitable[object]] = [
            stub.ReturnClaim(pb.ReturnClaimRequest(engine_id="decode-1")),
            stub.ReturnClaim(pb.ReturnClaimRequest(claim_id="c")),
            stub.ReleaseHandles(pb.ReleaseHandlesRequest(handle_ids=["e/1"] * 1001)),
            stub.ReleaseHandles(pb.ReleaseHandlesRequest(handle_ids=["no slash"])),
            stub.ListHandles(pb.ListHandlesRequest(page_token="%%%")),
            stub.ListHandles(pb.ListHandlesRequest(page_token="_w==")),
            stub.ListHandles(pb.ListHandlesRequest(session_key="chat")),
        ]
        for call in calls:
            assert await denied(call) is Reason.INVALID_ARGUMENT


async def test_a_message_beyond_the_limit_is_refused_by_the_server() -> None:
    async with running_agent() as agent, FakeEngineLink(engine()).attached(agent.link):
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await agent.stub.AcquireHandle(pb.AcquireHandleRequest(claim_id="c" * 5_000_000))
        assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(await agent.engines()) == 1


async def test_scenario_31_the_socket_of_a_live_agent_is_not_taken() -> None:
    async with running_agent() as agent:
        with pytest.raises(PortInUse):
            async with running_agent(link=agent.link):
                pass


async def test_the_file_of_a_dead_agent_is_replaced(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o700)
    path = tmp_path / "l"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with (
        running_agent(link=f"unix:{path}") as agent,
        FakeEngineLink(engine()).attached(agent.link),
    ):
        assert len(await agent.engines()) == 1


def test_the_folder_of_the_socket_is_private(tmp_path: Path) -> None:
    made = tmp_path / "made"
    require_private_folder(Address(unix_path=f"{made}/l"))
    assert made.stat().st_mode & 0o777 == 0o700
    os.chmod(made, 0o750)
    with pytest.raises(ConfigError, match="0700"):
        require_private_folder(Address(unix_path=f"{made}/l"))
    with pytest.raises(ConfigError, match="No such file"):
        require_private_folder(Address(unix_path=f"{tmp_path}/not/there/l"))
