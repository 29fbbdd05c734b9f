"""Servers and clients on random loopback ports, on uvloop and on asyncio's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import uvloop
from tests.integration.web.wire import (
    Dial,
    Listening,
    MakeClient,
    Script,
    Serve,
    Upstream,
    Wire,
)

from contraflow.web import (
    ClientLimits,
    Handler,
    Origin,
    ServerLimits,
    UpstreamClient,
)


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    servers: list[Listening] = []

    async def start(handler: Handler, host: str = "127.0.0.1", **limits: Any) -> Listening:
        server = Listening(handler, limits=ServerLimits(**limits))
        servers.append(server)
        server.port = await server.listen(host, 0)
        return server

    yield start
    for server in servers:
        await server.shutdown(0)


@pytest.fixture
async def dial() -> AsyncIterator[Dial]:
    wires: list[Wire] = []

    async def connect(server: Listening) -> Wire:
        wire = await Wire.connect(server.port)
        wires.append(wire)
        return wire

    yield connect
    for wire in wires:
        wire.abort()


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    """Upstreams that follow a script, one call of it per connection; what a script asserts
    counts."""
    servers: list[asyncio.Server] = []
    wires: list[Wire] = []
    failures: list[AssertionError] = []

    async def start(script: Script) -> Origin:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            wire = Wire(reader, writer)
            wires.append(wire)
            try:
                await script(wire)
            except AssertionError as failure:
                failures.append(failure)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        servers.append(server)
        return Origin("127.0.0.1", server.sockets[0].getsockname()[1])

    yield start
    for wire in wires:
        wire.abort()
    for server in servers:
        server.close()
    assert not failures


@pytest.fixture
async def make_client() -> AsyncIterator[MakeClient]:
    clients: list[UpstreamClient] = []

    def make(**limits: Any) -> UpstreamClient:
        client = UpstreamClient(ClientLimits(**limits))
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()
