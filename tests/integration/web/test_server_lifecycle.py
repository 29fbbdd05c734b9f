"""The server listens, takes only so many connections, and shuts down."""

from __future__ import annotations

import asyncio
import socket

import aiohttp
import pytest
from tests.integration.web.server_calls import GET, echo
from tests.integration.web.wire import Dial, Serve
from tests.support.wait import until

from contraflow.web import HttpServer, ListenError, Request, Responder


async def test_a_port_in_use_is_named(serve: Serve) -> None:
    server = await serve(echo)
    with pytest.raises(ListenError, match=f"127.0.0.1:{server.port}: the port is already in use"):
        await HttpServer(echo).listen("127.0.0.1", server.port)
    with pytest.raises(ListenError, match=r"192\.0\.2\.1:0"):
        await HttpServer(echo).listen("192.0.2.1", 0)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
async def test_ipv6(serve: Serve) -> None:
    try:
        server = await serve(echo, host="::1")
    except ListenError:
        pytest.skip("no IPv6 loopback here")
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://[::1]:{server.port}/") as got,
    ):
        assert got.status == 200


async def test_too_many_connections(serve: Serve, dial: Dial) -> None:
    server = await serve(echo, max_connections=1, linger=0.05)
    first = await dial(server)
    await first.send(GET)
    assert (await first.answer()).status == 200
    second = await dial(server)
    answer = await second.answer()
    assert (answer.status, answer.error["type"]) == (503, "ServiceUnavailableError")
    assert await second.rest() == b""
    await first.send(GET)
    assert (await first.answer()).status == 200


async def test_shutdown_lets_running_requests_finish(serve: Serve, dial: Dial) -> None:
    gate = asyncio.Event()
    started = asyncio.Event()

    async def handler(request: Request, responder: Responder) -> None:
        started.set()
        await gate.wait()
        responder.respond(200, [], b"x")

    server = await serve(handler)
    idle, busy = await dial(server), await dial(server)
    await busy.send(GET)
    await started.wait()
    await until(lambda: server.connections == 2, "both connections are open")
    stopping = asyncio.create_task(server.shutdown(20))
    assert await idle.rest() == b""
    with pytest.raises(OSError, match=r".+"):
        await dial(server)
    gate.set()
    answer = await busy.answer()
    assert answer.body == b"x"
    assert await busy.rest() == b""
    assert await stopping == 0


async def test_shutdown_cuts_off_what_outlasts_the_grace(serve: Serve, dial: Dial) -> None:
    started = asyncio.Event()
    cancelled = asyncio.Event()

    async def handler(request: Request, responder: Responder) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    server = await serve(handler)
    wire = await dial(server)
    await wire.send(GET)
    await started.wait()
    assert await server.shutdown(0.05) == 1
    assert cancelled.is_set()
    assert await wire.rest() == b""
