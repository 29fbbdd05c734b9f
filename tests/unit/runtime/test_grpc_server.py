"""What the server makes of exceptions, whatever kind of handler raises them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from contraflow.core.errors import (
    ContraflowError,
    Internal,
    InvalidArgument,
    NotFound,
    RevisionCompacted,
)
from contraflow.runtime.address import Address
from contraflow.runtime.config import ConfigError, PortInUse
from contraflow.runtime.grpc_errors import CallFailed, Unreachable, domain_errors
from contraflow.runtime.grpc_interceptor import Context
from contraflow.runtime.grpc_server import GrpcServer, Limits
from contraflow.v1 import directory_service_pb2 as pb
from contraflow.v1.directory_service_pb2_grpc import (
    DirectoryServiceServicer,
    DirectoryServiceStub,
    add_DirectoryServiceServicer_to_server,
)

if TYPE_CHECKING:
    from contraflow.v1.directory_service_pb2_grpc import DirectoryServiceAsyncStub

SERVICE = "contraflow.v1.DirectoryService"
ANY = Address("127.0.0.1", 0)


class Servicer(DirectoryServiceServicer):
    """Fails in the way that the engine id names."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def GetEngine(
        self, request: pb.GetEngineRequest, context: Context
    ) -> pb.GetEngineResponse:
        if request.engine_id == "domain":
            raise NotFound("no such engine", engine_id="domain")
        if request.engine_id == "abort":
            await context.abort(grpc.StatusCode.DATA_LOSS, "by hand")
        if request.engine_id == "peer":
            raise Unreachable("the peer is at 10.0.0.1", grpc.StatusCode.UNAVAILABLE)
        raise RuntimeError("a secret")

    async def Watch(
        self, request: pb.WatchRequest, context: Context
    ) -> AsyncGenerator[pb.WatchResponse, None]:
        try:
            yield pb.WatchResponse(revision=1)
            if request.start_revision == 1:
                raise RevisionCompacted("too old")
            if request.start_revision == 2:
                raise RuntimeError("a secret")
            await asyncio.Event().wait()
        finally:
            self.left.set()


@pytest.fixture
async def servicer() -> Servicer:
    return Servicer()  # type: ignore[abstract]


@pytest.fixture
async def address(servicer: Servicer) -> AsyncIterator[Address]:
    server = GrpcServer("directory", Limits(max_message_bytes=64 * 1024))
    server.add(add_DirectoryServiceServicer_to_server, servicer, SERVICE)
    address = server.listen(ANY)
    await server.start()
    yield address
    await server.stop(0)


@pytest.fixture
async def stub(address: Address) -> AsyncIterator[DirectoryServiceAsyncStub]:
    async with grpc.aio.insecure_channel(str(address)) as channel:
        yield DirectoryServiceStub(channel)


async def failure(stub: DirectoryServiceAsyncStub, engine_id: str) -> ContraflowError:
    with pytest.raises(ContraflowError) as caught, domain_errors():
        await stub.GetEngine(pb.GetEngineRequest(engine_id=engine_id))
    return caught.value


async def test_a_domain_error_arrives_as_itself(stub: DirectoryServiceAsyncStub) -> None:
    error = await failure(stub, "domain")
    assert type(error) is NotFound
    assert (str(error), error.metadata) == ("no such engine", {"engine_id": "domain"})


@pytest.mark.parametrize("kind", ["other", "peer"])
async def test_anything_else_tells_only_a_request_id(
    stub: DirectoryServiceAsyncStub,
    kind: str,
) -> None:
    error = await failure(stub, kind)
    assert type(error) is Internal
    assert str(error) == "internal error"
    assert set(error.metadata) == {"request_id"}


async def test_an_abort_by_hand_passes(stub: DirectoryServiceAsyncStub) -> None:
    error = await failure(stub, "abort")
    assert isinstance(error, CallFailed)
    assert error.code is grpc.StatusCode.DATA_LOSS


@pytest.mark.parametrize(("revision", "kind"), [(1, RevisionCompacted), (2, Internal)])
async def test_a_stream_fails_after_what_it_sent(
    stub: DirectoryServiceAsyncStub,
    revision: int,
    kind: type[ContraflowError],
) -> None:
    responses = aiter(stub.Watch(pb.WatchRequest(start_revision=revision)))
    assert (await anext(responses)).revision == 1
    with pytest.raises(ContraflowError) as caught, domain_errors():
        await anext(responses)
    assert type(caught.value) is kind


async def test_a_caller_who_leaves_ends_the_handler(
    stub: DirectoryServiceAsyncStub,
    servicer: Servicer,
) -> None:
    call = stub.Watch(pb.WatchRequest())
    await anext(aiter(call))
    call.cancel()
    async with asyncio.timeout(20):
        await servicer.left.wait()


async def test_a_method_without_code_is_unimplemented(stub: DirectoryServiceAsyncStub) -> None:
    with pytest.raises(CallFailed) as caught, domain_errors():
        await stub.ListEngines(pb.ListEnginesRequest())
    assert caught.value.code is grpc.StatusCode.UNIMPLEMENTED


async def test_a_message_too_large_is_refused(stub: DirectoryServiceAsyncStub) -> None:
    with pytest.raises(CallFailed) as caught, domain_errors():
        await stub.GetEngine(pb.GetEngineRequest(engine_id="x" * 70_000))
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_addresses_that_can_not_be_bound() -> None:
    server, other = (GrpcServer("directory", Limits()) for _ in range(2))
    address = server.listen(ANY)
    await server.start()
    with pytest.raises(PortInUse, match=str(address)):
        other.listen(address)
    with pytest.raises(ConfigError, match=r"^can not listen on unix:/nowhere/s: No such file"):
        other.listen(Address(unix_path="/nowhere/s"))
    await server.stop(0)
    await other.stop(0)


@pytest.mark.parametrize("method", ["GetEngine", "Watch"])
async def test_what_is_no_message_is_an_invalid_argument(address: Address, method: str) -> None:
    async with grpc.aio.insecure_channel(str(address)) as channel:
        call: Any = channel.unary_stream if method == "Watch" else channel.unary_unary
        answer = call(f"/{SERVICE}/{method}")(b"\xff")
        with pytest.raises(InvalidArgument), domain_errors():
            await (answer.read() if method == "Watch" else answer)
