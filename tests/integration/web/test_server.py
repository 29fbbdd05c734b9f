"""What the server does with well-behaved and with slow, absent or greedy clients."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import aiohttp
import pytest
from tests.integration.web.wire import Dial, Serve
from tests.support.wait import until

from contraflow.web import ApiError, HttpServer, ListenError, Request, Responder

GET = b"GET /a?b=1 HTTP/1.1\r\nHost: h\r\n\r\n"
CLOSE = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"


def post(body: bytes, *headers: bytes) -> bytes:
    lines = b"".join(b"%b\r\n" % header for header in headers)
    head = b"POST /v1/x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n%b\r\n"
    return head % (len(body), lines) + body


async def echo(request: Request, responder: Responder) -> None:
    responder.send_json(
        200,
        {
            "method": request.method,
            "path": request.path,
            "query": request.query,
            "body": request.body.decode(),
            "x": (request.header(b"x-test") or b"").decode(),
        },
    )


async def test_requests_on_one_connection(serve: Serve, dial: Dial) -> None:
    wire = await dial(await serve(echo))
    await wire.send(GET)
    first = await wire.answer()
    assert first.status == 200
    assert first.headers[b"content-type"] == b"application/json"
    assert b"connection" not in first.headers
    assert b"date" in first.headers
    expected = b'{"method":"GET","path":"/a","query":"b=1","body":"","x":""}'
    assert first.body == expected
    await wire.send(post(b"hello", b"X-TEST:  v "))
    expected = b'{"method":"POST","path":"/v1/x","query":"","body":"hello","x":"v"}'
    assert (await wire.answer()).body == expected
    await wire.send(CLOSE)
    last = await wire.answer()
    assert last.headers[b"connection"] == b"close"
    assert await wire.rest() == b""


async def test_pipelined_requests_are_answered_in_order(serve: Serve, dial: Dial) -> None:
    gates = {f"/{n}": asyncio.Event() for n in range(3)}
    started: list[str] = []

    async def handler(request: Request, responder: Responder) -> None:
        started.append(request.path)
        await gates[request.path].wait()
        responder.respond(200, [], request.path.encode())

    wire = await dial(await serve(handler))
    requests = b"".join(b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n" % n for n in range(3))
    await wire.send(requests[:-10])
    gates["/2"].set()
    gates["/1"].set()
    await until(lambda: started == ["/0"], "the first request runs alone")
    await wire.send(requests[-10:])
    gates["/0"].set()
    assert [(await wire.answer()).body for _ in range(3)] == [b"/0", b"/1", b"/2"]
    assert started == ["/0", "/1", "/2"]


async def test_a_greedy_pipeliner_is_not_read_without_bound(serve: Serve, dial: Dial) -> None:
    gate = asyncio.Event()

    async def handler(request: Request, responder: Responder) -> None:
        await gate.wait()
        responder.respond(200, [], b"%d" % len(request.body))

    server = await serve(handler, max_pipelined_bytes=1024)
    wire = await dial(server)
    big = post(b"x" * 4_000_000)
    sending = asyncio.create_task(wire.send(GET + big + GET))
    connection = await _only_connection(server)
    await until(lambda: connection._read_paused, "reading pauses")
    assert connection._backlog_bytes < 1_000_000
    gate.set()
    assert [(await wire.answer()).body for _ in range(3)] == [b"0", b"4000000", b"0"]
    await sending


async def _only_connection(server: HttpServer) -> Any:
    await until(lambda: server.connections == 1, "the connection is open")
    return next(iter(server._connections))


async def test_chunked_bodies_and_their_trailers(serve: Serve, dial: Dial) -> None:
    wire = await dial(await serve(echo))
    head = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\n\r\n"
    body = b"3;ext=1\r\nabc\r\n4\r\ndefg\r\n0\r\nX-Trailer: t\r\n\r\n"
    for byte in head + body:
        await wire.send(bytes([byte]))
    assert b'"body":"abcdefg"' in (await wire.answer()).body
    await wire.send(head + body + GET)
    assert b'"body":"abcdefg"' in (await wire.answer()).body
    assert b'"method":"GET"' in (await wire.answer()).body


async def test_expect_100_continue(serve: Serve, dial: Dial) -> None:
    wire = await dial(await serve(echo, max_body_bytes=10))
    request = post(b"hello", b"Expect: 100-continue")
    await wire.send(request[:-5])
    assert (await wire.head())[0] == "HTTP/1.1 100 Continue"
    await wire.send(b"hello")
    assert (await wire.answer()).status == 200
    await wire.send(request)
    assert (await wire.answer()).status == 200
    await wire.send(post(b"x" * 11, b"Expect: 100-continue")[:-11])
    assert (await wire.answer()).status == 413


async def test_head_has_headers_and_no_body(serve: Serve, dial: Dial) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        if request.query:
            responder.start(200, [])
            await responder.write(b"dropped")
            responder.finish()
        else:
            responder.send_json(200, {"a": 1})

    wire = await dial(await serve(handler))
    await wire.send(b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n")
    answer = await wire.answer(body=False)
    assert answer.headers[b"content-length"] == b"7"
    await wire.send(b"HEAD /?stream HTTP/1.1\r\nHost: h\r\n\r\n" + CLOSE)
    assert (await wire.answer(body=False)).status == 200
    assert (await wire.answer()).body == b'{"a":1}'


async def test_http_1_0_gets_a_body_that_ends_with_the_connection(serve: Serve, dial: Dial) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        responder.start(200, [])
        await responder.write(b"one")
        await responder.write(b"two")
        responder.finish()

    wire = await dial(await serve(handler))
    await wire.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    answer = await wire.answer()
    assert answer.headers[b"connection"] == b"close"
    assert answer.body == b"onetwo"


async def test_an_upgrade_is_not_taken_up_and_its_body_is_read(serve: Serve, dial: Dial) -> None:
    wire = await dial(await serve(echo))
    upgrade = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAA")
    await wire.send(post(b"hello", *upgrade) + GET)
    assert b'"body":"hello"' in (await wire.answer()).body
    assert b'"method":"GET"' in (await wire.answer()).body
    chunked = b"\r\n".join(
        (b"POST / HTTP/1.1", b"Host: h", *upgrade, b"Transfer-Encoding: chunked", b"", b"5")
    )
    for byte in chunked + b"\r\nworld\r\n0\r\n\r\n":
        await wire.send(bytes([byte]))
    assert b'"body":"world"' in (await wire.answer()).body
    await wire.send(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n" + GET)
    assert [(await wire.answer()).status for _ in range(2)] == [200, 200]


async def test_streaming_and_a_4_mb_chunk(serve: Serve, dial: Dial) -> None:
    big = b"x" * (4 << 20)

    async def handler(request: Request, responder: Responder) -> None:
        responder.start(200, [(b"content-type", b"text/event-stream")])
        await responder.write(b"data: a\n\n")
        await responder.write(b"")
        await responder.write(big)
        responder.finish()

    wire = await dial(await serve(handler))
    await wire.send(GET)
    _, headers = await wire.head()
    assert headers[b"transfer-encoding"] == b"chunked"
    assert [await wire.chunk() for _ in range(3)] == [b"data: a\n\n", big, b""]
    await wire.send(GET)
    assert (await wire.answer()).body == b"data: a\n\n" + big


async def test_a_stream_with_a_known_length(serve: Serve, dial: Dial) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        responder.start(200, [(b"content-length", b"6")])
        await responder.write(b"abc")
        if request.query:
            with pytest.raises(ValueError, match="longer"):
                await responder.write(b"defg")
            with pytest.raises(ValueError, match="shorter"):
                responder.finish()
            return
        await responder.write(b"def")
        responder.finish()

    server = await serve(handler)
    wire = await dial(server)
    await wire.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (await wire.answer()).body == b"abcdef"
    await wire.send(GET)
    _, headers = await wire.head()
    assert len(await wire.rest()) < int(headers[b"content-length"])


async def test_a_disconnect_cancels_the_handler(serve: Serve, dial: Dial) -> None:
    events: list[str] = []

    async def handler(request: Request, responder: Responder) -> None:
        request.on_disconnect(lambda: events.append("callback"))
        events.append("started")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            events.append(f"cancelled, disconnected={request.disconnected}")
            raise

    wire = await dial(await serve(handler))
    await wire.send(GET)
    await until(lambda: events == ["started"], "the handler runs")
    wire.abort()
    expected = ["started", "callback", "cancelled, disconnected=True"]
    await until(lambda: events == expected, "the handler is cancelled")


async def test_a_disconnect_behind_a_pipelined_request_cancels_too(
    serve: Serve, dial: Dial
) -> None:
    cancelled = asyncio.Event()
    started = asyncio.Event()

    async def handler(request: Request, responder: Responder) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    wire = await dial(await serve(handler))
    await wire.send(GET + GET)
    await started.wait()
    await wire.send(GET)
    wire.writer.write_eof()
    await until(cancelled.is_set, "the handler is cancelled")


async def test_after_its_response_a_handler_is_left_in_peace(serve: Serve, dial: Dial) -> None:
    gate = asyncio.Event()
    done: list[str] = []

    async def handler(request: Request, responder: Responder) -> None:
        responder.respond(200, [], b"x")
        await gate.wait()
        done.append(request.path)

    server = await serve(handler)
    wire = await dial(server)
    await wire.send(GET)
    assert (await wire.answer()).body == b"x"
    await wire.send(GET)
    assert (await wire.answer()).body == b"x"
    wire.abort()
    await until(lambda: server.connections == 0, "the disconnect is seen")
    gate.set()
    await until(lambda: done == ["/a", "/a"], "both handlers end by themselves")


async def test_a_slow_reader_stops_the_writer(serve: Serve, dial: Dial) -> None:
    written = 0
    progress = asyncio.Event()

    async def handler(request: Request, responder: Responder) -> None:
        nonlocal written
        responder.start(200, [])
        for _ in range(400):
            await responder.write(b"x" * 100_000)
            written += 1
            progress.set()
        responder.finish()

    server = await serve(handler)
    wire = await dial(server)
    wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await wire.send(GET)
    connection = await _only_connection(server)
    await until(lambda: connection.congested and connection._drained is not None, "it waits")
    assert written < 400
    assert connection._transport.get_write_buffer_size() < 300_000
    wire.writer.transport.resume_reading()  # type: ignore[attr-defined]
    assert len((await wire.answer()).body) == 40_000_000
    assert written == 400


async def test_a_client_that_takes_nothing_is_cut_off(serve: Serve, dial: Dial) -> None:
    ended: list[str] = []

    async def handler(request: Request, responder: Responder) -> None:
        responder.start(200, [])
        try:
            while True:
                await responder.write(b"x" * 100_000)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    wire = await dial(await serve(handler, write_timeout=0.05))
    wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await wire.send(GET)
    await until(lambda: ended == ["cancelled"], "the write timeout")


async def test_handler_errors(serve: Serve, dial: Dial) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        if request.path == "/api":
            raise ApiError(404, "no such model", param="model")
        if request.path == "/silent":
            return
        if request.path == "/header":
            responder.respond(200, [(b"x", b"a\r\nb: c")])
        raise RuntimeError("secret detail")

    wire = await dial(await serve(handler))
    await wire.send(b"GET /api HTTP/1.1\r\nHost: h\r\n\r\n")
    answer = await wire.answer()
    assert answer.status == 404
    assert answer.error["param"] == "model"
    for path in (b"/boom", b"/silent", b"/header"):
        await wire.send(b"GET %b HTTP/1.1\r\nHost: h\r\nX-Request-ID: req-7\r\n\r\n" % path)
        answer = await wire.answer()
        assert answer.status == 500
        assert answer.error["type"] == "InternalServerError"
        assert answer.error["message"] == "Internal error; the request id is req-7."
        assert answer.headers[b"x-request-id"] == b"req-7"


async def test_an_error_in_mid_response_truncates_it(serve: Serve, dial: Dial) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        responder.start(200, [])
        await responder.write(b"abc")
        if request.query:
            await asyncio.wait_for(asyncio.Event().wait(), 0.01)
        raise ApiError(404, "too late")

    server = await serve(handler)
    for target in (b"/", b"/?x"):
        wire = await dial(server)
        await wire.send(b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n" % target)
        assert not (await wire.rest()).endswith(b"0\r\n\r\n")
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientError):
                async with session.get(f"http://127.0.0.1:{server.port}{target.decode()}") as got:
                    await got.read()


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


async def test_a_port_in_use_is_named(serve: Serve) -> None:
    server = await serve(echo)
    with pytest.raises(ListenError, match=f"127.0.0.1:{server.port}: the port is already in use"):
        await HttpServer(echo).listen("127.0.0.1", server.port)
    with pytest.raises(ListenError, match=r"192\.0\.2\.1:0"):
        await HttpServer(echo).listen("192.0.2.1", 0)


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


async def test_aiohttp_as_a_client(serve: Serve) -> None:
    server = await serve(echo)

    async def body() -> Any:
        for _ in range(5):
            yield b"piece "

    async with aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{server.port}/p?q"
        async with session.post(url, data=body()) as got:
            assert (await got.json())["body"] == "piece " * 5
        async with session.post(url, data=b"x" * 300_000, expect100=True) as got:
            assert len((await got.json())["body"]) == 300_000


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
