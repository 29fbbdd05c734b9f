"""RouterService as operators meet it: says what the test says."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from contraflow.core.errors import ContraflowError
from contraflow.runtime.address import Address
from contraflow.runtime.grpc_interceptor import Context
from contraflow.runtime.grpc_server import GrpcServer, Limits
from contraflow.v1 import router_service_pb2 as pb
from contraflow.v1.router_service_pb2_grpc import (
    RouterServiceServicer,
    add_RouterServiceServicer_to_server,
)


class FakeRouter(RouterServiceServicer):
    """Answers with ``plan`` and ``view``, or fails with ``error``; keeps what it was asked."""

    def __init__(self) -> None:
        self.plan = pb.PlanTurnResponse()
        self.view = pb.ListViewEnginesResponse()
        self.error: ContraflowError | None = None
        self.asked: list[pb.PlanTurnRequest] = []
        self.credentials: list[str] = []

    async def PlanTurn(self, request: pb.PlanTurnRequest, context: Context) -> pb.PlanTurnResponse:
        self.asked.append(request)
        metadata = context.invocation_metadata() or ()
        self.credentials += [str(value) for key, value in metadata if key == "authorization"]
        if self.error is not None:
            raise self.error
        return self.plan

    async def ListViewEngines(
        self, request: pb.ListViewEnginesRequest, context: Context
    ) -> pb.ListViewEnginesResponse:
        return self.view

    async def EndSession(
        self, request: pb.EndSessionRequest, context: Context
    ) -> pb.EndSessionResponse:
        return pb.EndSessionResponse()

    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        yield pb.GenerateResponse(result=pb.TurnResult())

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Address]:
        """Gives its address."""
        server = GrpcServer("router", Limits())
        server.add(add_RouterServiceServicer_to_server, self, "contraflow.v1.RouterService")
        address = server.listen(Address("127.0.0.1", 0))
        await server.start()
        try:
            yield address
        finally:
            await server.stop(0)
