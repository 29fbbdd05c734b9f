"""Calls to RouterService of a router in this process, over a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc

from contraflow.core.errors import ContraflowError
from contraflow.router.servicer import SERVICE
from contraflow.runtime.address import Address
from contraflow.runtime.grpc_errors import from_rpc_error
from contraflow.runtime.grpc_server import GrpcServer, Limits
from contraflow.v1 import router_service_pb2 as pb
from contraflow.v1.router_service_pb2_grpc import (
    RouterServiceStub,
    add_RouterServiceServicer_to_server,
)
from tests.support.router_world import World

if TYPE_CHECKING:
    from contraflow.v1.router_service_pb2_grpc import RouterServiceAsyncStub

Event = pb.GenerateResponse


@asynccontextmanager
async def router_stub(world: World) -> AsyncIterator[RouterServiceAsyncStub]:
    """A client of the router."""
    server = GrpcServer("router", Limits())
    server.add(add_RouterServiceServicer_to_server, world.app.servicer, SERVICE)
    address = server.listen(Address(host="127.0.0.1", port=0))
    await server.start()
    try:
        async with grpc.aio.insecure_channel(str(address)) as channel:
            yield RouterServiceStub(channel)
    finally:
        await server.stop(0)


def chat(*texts: str, **fields: Any) -> pb.GenerateRequest:
    """A request with user messages."""
    messages = [pb.Message(role="user", content=text) for text in texts or ("hi",)]
    return pb.GenerateRequest(messages=pb.Messages(messages=messages), **fields)


async def read(
    stub: RouterServiceAsyncStub, request: pb.GenerateRequest, **kwargs: Any
) -> list[Event]:
    """All messages of a turn that goes well. Raises what ``failure`` catches if it does not."""
    return [event async for event in stub.Generate(request, timeout=30, **kwargs)]


async def failure(
    stub: RouterServiceAsyncStub, request: pb.GenerateRequest, **kwargs: Any
) -> tuple[grpc.StatusCode, ContraflowError, list[Event]]:
    """The status and the domain error of a turn that fails, and what came before it."""
    events: list[Event] = []
    try:
        async for event in stub.Generate(request, timeout=30, **kwargs):
            events.append(event)
    except grpc.aio.AioRpcError as error:
        return error.code(), from_rpc_error(error), events
    raise AssertionError("the turn went well")


def kinds(events: list[Event]) -> list[str | None]:
    """What each message of a stream says."""
    return [event.WhichOneof("event") for event in events]


def text_of(events: list[Event]) -> str:
    """The text of all chunks."""
    return "".join(event.chunk.text for event in events)
