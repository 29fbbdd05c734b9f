"""What the server reads: bodies, pipelines, expectations, upgrades."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
from tests.integration.web.server_calls import CLOSE, GET, echo, only_connection, post
from tests.integration.web.wire import Dial, Serve
from tests.support.wait import until

from contraflow.web import Request, Responder


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
    connection = await only_connection(server)
    await until(lambda: connection._read_paused, "reading pauses")
    assert connection._backlog_bytes < 1_000_000
    gate.set()
    assert [(await wire.answer()).body for _ in range(3)] == [b"0", b"4000000", b"0"]
    await sending


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
