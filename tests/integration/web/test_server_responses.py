"""What the server writes: streams, lengths, errors."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from tests.integration.web.server_calls import CLOSE, GET
from tests.integration.web.wire import Dial, Serve

from contraflow.web import ApiError, Request, Responder


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
    refused = asyncio.Event()

    async def handler(request: Request, responder: Responder) -> None:
        responder.start(200, [(b"content-length", b"6")])
        await responder.write(b"abc")
        if request.query:
            with pytest.raises(ValueError, match="longer"):
                await responder.write(b"defg")
            with pytest.raises(ValueError, match="shorter"):
                responder.finish()
            refused.set()
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
    assert refused.is_set()


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
