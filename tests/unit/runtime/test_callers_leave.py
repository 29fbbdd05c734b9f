"""Callers of gRPC who leave in the moment of their answer: expected, so nothing to trace."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from contraflow.core.errors import StoreUnavailable
from contraflow.runtime.address import Address
from contraflow.runtime.grpc_interceptor import Context, ErrorInterceptor
from contraflow.runtime.grpc_server import GrpcServer, Limits
from contraflow.v1 import directory_service_pb2 as pb
from contraflow.v1.directory_service_pb2_grpc import (
    DirectoryServiceServicer,
    DirectoryServiceStub,
    add_DirectoryServiceServicer_to_server,
)

METHOD = "/contraflow.v1.DirectoryService/GetEngine"
CALLERS = 200


class Gone:
    """The context of a call whose caller has left, of which gRPC has not told yet."""

    async def abort(self, *_status: Any) -> None:
        raise grpc.aio.InternalError('Failed "execute_batch"')


class Call:
    method = METHOD


async def test_an_error_that_nobody_waits_for_is_one_line_with_its_reason() -> None:
    async def respond(request: Any, context: Context) -> Any:
        raise StoreUnavailable("etcd does not answer")

    async def found(details: Any) -> grpc.RpcMethodHandler[Any, Any]:
        return grpc.unary_unary_rpc_method_handler(respond)

    handler: Any = await ErrorInterceptor().intercept_service(found, Call())  # type: ignore[arg-type]
    with capture_logs() as lines, pytest.raises(asyncio.CancelledError):
        await handler.unary_unary(None, Gone())
    assert lines == [
        {
            "event": "caller_left",
            "log_level": "info",
            "method": METHOD,
            "reason": "STORE_UNAVAILABLE",
            "error": "etcd does not answer",
        }
    ]


class Late(DirectoryServiceServicer):
    """Answers at the very deadline of each call."""

    def __init__(self) -> None:
        self.left = 0

    async def GetEngine(
        self, request: pb.GetEngineRequest, context: Context
    ) -> pb.GetEngineResponse:
        try:
            while (context.time_remaining() or 0) > 0:  # noqa: ASYNC110 - the deadline is gRPC's
                await asyncio.sleep(0)
        finally:
            self.left += 1
        if request.engine_id == "fails":
            raise StoreUnavailable("etcd does not answer")
        return pb.GetEngineResponse()


@pytest.mark.parametrize("engine_id", ["fails", "answers"])
async def test_callers_who_leave_as_they_are_answered_leave_no_trace(
    engine_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    servicer = Late()  # type: ignore[abstract]
    server = GrpcServer("directory", Limits())
    server.add(add_DirectoryServiceServicer_to_server, servicer, "contraflow.v1.DirectoryService")
    address = server.listen(Address("127.0.0.1", 0))
    await server.start()
    async with asyncio.timeout(30), grpc.aio.insecure_channel(str(address)) as channel:
        await channel.channel_ready()
        stub = DirectoryServiceStub(channel)
        request = pb.GetEngineRequest(engine_id=engine_id)
        while servicer.left < CALLERS / 2:  # a slow machine lets none through before its deadline
            await asyncio.gather(
                *(stub.GetEngine(request, timeout=0.3).code() for _ in range(CALLERS))
            )
    await server.stop(5)
    assert [record for record in caplog.records if record.exc_info] == []


def test_other_errors_of_grpc_keep_their_trace(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("grpc._cython.cygrpc")
    try:
        raise RuntimeError("a defect")
    except RuntimeError:
        logger.exception("Unexpected [RuntimeError] raised by servicer method")
    assert caplog.records[-1].exc_info
