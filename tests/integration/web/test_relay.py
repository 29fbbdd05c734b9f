"""Server and client together, as the router uses them: one stream through both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.integration.web.wire import Dial, MakeClient, Serve, Upstream, Wire
from tests.support.wait import until

from contraflow.web import (
    Handler,
    Origin,
    Request,
    Responder,
    SseFilter,
    UpstreamClient,
    end_to_end,
)

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def reading(client: UpstreamClient, origin: Origin) -> Handler:
    async def handler(request: Request, responder: Responder) -> None:
        sse = SseFilter()
        async with client.request("POST", origin, request.path, body=request.body) as response:
            responder.start(response.status, end_to_end(response.headers))
            async for data in response.iter_raw():
                if out := sse.feed(data):
                    await responder.write(out)
            responder.finish(sse.finish())

    return handler


def pumping(client: UpstreamClient, origin: Origin) -> Handler:
    async def handler(request: Request, responder: Responder) -> None:
        sse = SseFilter()
        async with client.request("POST", origin, request.path, body=request.body) as response:
            responder.start(response.status, end_to_end(response.headers))
            last = await response.pump(
                lambda data: responder.write_nowait(sse.feed(data)), responder.drain
            )
            responder.finish(sse.feed(last) + sse.finish())

    return handler


MakeRelay = Callable[[UpstreamClient, Origin], Handler]


@pytest.fixture(params=[reading, pumping])
def relay(request: pytest.FixtureRequest) -> MakeRelay:
    """Both ways to pass a body on."""
    way: MakeRelay = request.param
    return way


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def test_scenario_12_events_pass_as_they_come(
    relay: MakeRelay, serve: Serve, dial: Dial, upstream: Upstream, make_client: MakeClient
) -> None:
    more = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(STREAM + chunk(b"data: 1\n\n") + chunk(b"data: 2"))
        await more.wait()
        await wire.send(chunk(b"\n\ndata: [DONE]\n\n") + b"0\r\n\r\n")

    wire = await dial(await serve(relay(make_client(), await upstream(script))))
    await wire.send(GET)
    assert (await wire.head())[1][b"content-type"] == b"text/event-stream"
    assert await wire.chunk() == b"data: 1\n\n"
    more.set()
    assert await wire.chunk() == b"data: 2\n\ndata: [DONE]\n\n"
    assert await wire.chunk() == b""


async def test_a_client_that_leaves_aborts_the_engine(
    relay: MakeRelay, serve: Serve, dial: Dial, upstream: Upstream, make_client: MakeClient
) -> None:
    closed = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(STREAM + chunk(b"data: 1\n\n"))
        assert await wire.rest() == b""
        closed.set()

    wire = await dial(await serve(relay(make_client(), await upstream(script))))
    await wire.send(GET)
    await wire.head()
    assert await wire.chunk() == b"data: 1\n\n"
    wire.abort()
    await until(closed.is_set, "the engine sees the disconnect")


async def test_an_engine_that_dies_truncates_the_clients_stream(
    relay: MakeRelay, serve: Serve, dial: Dial, upstream: Upstream, make_client: MakeClient
) -> None:
    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(STREAM + chunk(b"data: 1\n\n"))
        wire.writer.close()

    wire = await dial(await serve(relay(make_client(), await upstream(script))))
    await wire.send(GET)
    assert not (await wire.rest()).endswith(b"0\r\n\r\n")


async def test_a_client_that_does_not_read_stops_the_engine(
    relay: MakeRelay, serve: Serve, dial: Dial, upstream: Upstream, make_client: MakeClient
) -> None:
    sent = 0
    event = b"data: " + b"x" * 50_000 + b"\n\n"

    async def script(wire: Wire) -> None:
        nonlocal sent
        await wire.request()
        await wire.send(STREAM)
        for _ in range(1000):
            await wire.send(chunk(event))
            sent += 1
        await wire.send(b"0\r\n\r\n")

    origin, client = await upstream(script), make_client()
    server = await serve(relay(client, origin))
    wire = await dial(server)
    wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await wire.send(GET)
    await until(lambda: bool(client.pool(origin)._open), "the engine is asked")
    upstream_side = next(iter(client.pool(origin)._open))
    client_side = next(iter(server._connections))
    await until(lambda: upstream_side.paused, "reading from the engine pauses")
    assert sent < 1000
    assert upstream_side._response is not None
    assert upstream_side._response.buffered < 64 * 1024 + 300_000
    assert client_side._transport.get_write_buffer_size() < 700_000
    wire.writer.transport.resume_reading()  # type: ignore[attr-defined]
    assert (await wire.answer()).body == event * 1000
    assert sent == 1000
