"""Requests that could be read in two ways, that are too big, or that never end."""

from __future__ import annotations

import asyncio

import pytest
from tests.integration.web.wire import Dial, Serve

from contraflow.web import Request, Responder

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked"
ZERO = b"0\r\n\r\n"


async def handler(request: Request, responder: Responder) -> None:
    assert request.path != "/smuggled"
    responder.respond(200, [], b"fine")


def post(*headers: bytes, body: bytes = b"", version: bytes = b"1.1") -> bytes:
    lines = b"".join(b"%b\r\n" % header for header in (b"Host: h", *headers))
    return b"POST / HTTP/%b\r\n%b\r\n" % (version, lines) + body


REFUSED = {
    "CL and TE": (400, post(b"Content-Length: 5", CHUNKED, body=ZERO)),
    "TE and CL": (400, post(CHUNKED, b"Content-Length: 5", body=ZERO)),
    "two CL, equal": (400, post(b"Content-Length: 1", b"Content-Length: 1", body=b"x")),
    "two CL, different": (400, post(b"Content-Length: 1", b"Content-Length: 9", body=b"x")),
    "CL as list": (400, post(b"Content-Length: 1, 1", body=b"x")),
    "CL with sign": (400, post(b"Content-Length: +1", body=b"x")),
    "CL negative": (400, post(b"Content-Length: -1", body=b"x")),
    "CL empty": (400, post(b"Content-Length: ", body=b"x")),
    "CL hexadecimal": (400, post(b"Content-Length: 0x1", body=b"x")),
    "CL overflow": (400, post(b"Content-Length: 99999999999999999999999")),
    "obs-fold": (400, post(b"X: a\r\n b", b"Content-Length: 1", body=b"x")),
    "obs-fold in TE": (400, post(b"Transfer-Encoding:\r\n chunked", body=ZERO)),
    "bare LF everywhere": (400, b"POST / HTTP/1.1\nHost: h\nContent-Length: 1\n\nx"),
    "bare LF after a header": (400, b"GET / HTTP/1.1\r\nHost: h\nX: y\r\n\r\n"),
    "bare LF at the end": (400, b"GET / HTTP/1.1\r\nHost: h\r\n\n"),
    "bare CR": (400, b"GET / HTTP/1.1\r\nHost: h\rX: y\r\n\r\n"),
    "TE identity": (501, post(b"Transfer-Encoding: identity", body=b"x")),
    "TE identity and CL": (400, post(b"Transfer-Encoding: identity", b"Content-Length: 1")),
    "TE chunked, identity": (400, post(b"Transfer-Encoding: chunked, identity", body=ZERO)),
    "TE gzip, chunked": (501, post(b"Transfer-Encoding: gzip, chunked", body=ZERO)),
    "TE twice": (400, post(CHUNKED, CHUNKED, body=ZERO)),
    "TE xchunked": (501, post(b"Transfer-Encoding: xchunked", body=ZERO)),
    "TE with a space before the colon": (400, post(b"Transfer-Encoding : chunked", body=ZERO)),
    "TE with a vertical tab": (400, post(b"Transfer-Encoding: \x0bchunked", body=ZERO)),
    "TE in HTTP/1.0": (501, post(CHUNKED, body=ZERO, version=b"1.0")),
    "chunk size 0x1": (400, post(CHUNKED, body=b"0x1\r\nx\r\n" + ZERO)),
    "chunk size +1": (400, post(CHUNKED, body=b"+1\r\nx\r\n" + ZERO)),
    "chunk size with a space": (400, post(CHUNKED, body=b"1 \r\nx\r\n" + ZERO)),
    "chunk size overflow": (400, post(CHUNKED, body=b"fffffffffffffffff\r\nx\r\n" + ZERO)),
    "chunk with LF": (400, post(CHUNKED, body=b"1\nx\n0\n\n")),
    "chunk extension with LF": (400, post(CHUNKED, body=b"1;a\nx\r\n" + ZERO)),
    "chunk without its end": (400, post(CHUNKED, body=b"1\r\nx0\r\n\r\n")),
    "CL in a trailer": (400, post(CHUNKED, body=b"0\r\nContent-Length: 3\r\n\r\n")),
    "no Host": (400, b"GET / HTTP/1.1\r\n\r\n"),
    "two Hosts": (400, b"GET / HTTP/1.1\r\nHost: h\r\nHost: i\r\n\r\n"),
    "HTTP/2.0": (505, b"GET / HTTP/2.0\r\nHost: h\r\n\r\n"),
    "HTTP/0.9": (505, b"GET /\r\n\r\n"),
    "HTTP/1.2": (400, b"GET / HTTP/1.2\r\nHost: h\r\n\r\n"),
    "HTTP/2 preface": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "TLS": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "CONNECT": (501, b"CONNECT a:1 HTTP/1.1\r\nHost: h\r\n\r\n"),
    "RTSP": (501, b"DESCRIBE / RTSP/1.0\r\nHost: h\r\n\r\n"),
    "lower-case method": (400, b"get / HTTP/1.1\r\nHost: h\r\n\r\n"),
    "foreign URI": (400, b"GET ftp://x/ HTTP/1.1\r\nHost: h\r\n\r\n"),
    "control character in the URI": (400, b"GET /\x01 HTTP/1.1\r\nHost: h\r\n\r\n"),
    "NUL in a header": (400, b"GET / HTTP/1.1\r\nHost: h\r\nX: a\0b\r\n\r\n"),
    "header without name": (400, b"GET / HTTP/1.1\r\nHost: h\r\n: b\r\n\r\n"),
    "header without colon": (400, b"GET / HTTP/1.1\r\nHost: h\r\nX\r\n\r\n"),
    "space before the first header": (400, b"GET / HTTP/1.1\r\n X: b\r\nHost: h\r\n\r\n"),
    "other expectation": (417, post(b"Expect: tea", b"Content-Length: 0")),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_refused_and_closed(name: str, serve: Serve, dial: Dial) -> None:
    status, data = REFUSED[name]
    wire = await dial(await serve(handler))
    await wire.send(data + SMUGGLED)
    answer = await wire.answer()
    assert answer.status == status
    assert answer.error["message"]
    assert answer.headers[b"connection"] == b"close"
    wire.writer.write_eof()
    assert await wire.rest() == b""


async def test_a_bad_request_behind_good_ones_is_refused_last(serve: Serve, dial: Dial) -> None:
    wire = await dial(await serve(handler))
    good = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
    await wire.send(good + good + REFUSED["CL and TE"][1] + good)
    assert [(await wire.answer()).status for _ in range(3)] == [200, 200, 400]
    wire.writer.write_eof()
    assert await wire.rest() == b""


async def test_what_follows_connection_close_is_not_read(serve: Serve, dial: Dial) -> None:
    wire = await dial(await serve(handler))
    await wire.send(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n" + SMUGGLED)
    assert (await wire.answer()).status == 200
    wire.writer.write_eof()
    assert await wire.rest() == b""


async def test_an_absolute_uri_is_a_path(serve: Serve, dial: Dial) -> None:
    async def show(request: Request, responder: Responder) -> None:
        responder.respond(200, [], f"{request.path} {request.query}".encode())

    wire = await dial(await serve(show))
    for uri, seen in (
        (b"http://x/y?z#f", b"/y z"),
        (b"HTTP://x", b"/ "),
        (b"/%2e?a?b", b"/%2e a?b"),
    ):
        await wire.send(b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n" % uri)
        assert (await wire.answer()).body == seen


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 3000, 431),
        (b"GET /" + b"a" * 3000, 431),
        (b"GET / HTTP/1.1\r\nHost: h\r\n" + b"X: yy\r\n" * 60 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: h\r\n" + b"X: y\r\n" * 20 + b"\r\n", 431),
        (post(b"Content-Length: 101"), 413),
        (post(CHUNKED, body=b"60\r\n" + b"x" * 96 + b"\r\n5\r\n" + b"x" * 5 + b"\r\n"), 413),
        (post(CHUNKED, body=b"1;" + b"e" * 900_000), 431),
        (post(CHUNKED, body=b"0\r\nX: " + b"t" * 900_000), 431),
        (post(CHUNKED, body=b"0\r\n" + b"X: t\r\n" * 60 + b"\r\n"), 431),
    ],
)
@pytest.mark.parametrize("step", [100, 1_000_000])
async def test_too_big(data: bytes, status: int, step: int, serve: Serve, dial: Dial) -> None:
    wire = await dial(
        await serve(handler, max_header_bytes=300, max_headers=10, max_body_bytes=100)
    )
    for at in range(0, len(data), step):
        await wire.send(data[at : at + step])
    answer = await wire.answer()
    assert answer.status == status
    assert answer.error["type"] == "RequestTooLargeError"
    wire.writer.write_eof()
    assert await wire.rest() == b""


async def test_a_client_still_sending_sees_the_413(serve: Serve, dial: Dial) -> None:
    wire = await dial(await serve(handler, max_body_bytes=1000))
    await wire.send(post(b"Content-Length: 30000000"))
    for _ in range(300):
        await wire.send(b"x" * 100_000)
    assert (await wire.answer()).status == 413
    wire.writer.write_eof()
    assert await wire.rest() == b""


async def test_a_refused_client_that_never_stops_is_cut_off(serve: Serve, dial: Dial) -> None:
    wire = await dial(await serve(handler, max_body_bytes=10, linger=0.05))
    await wire.send(post(b"Content-Length: 11"))
    assert (await wire.answer()).status == 413
    assert await wire.rest() == b""


@pytest.mark.parametrize(
    "data",
    [
        b"G",
        b"GET / HTTP/1.1\r\nHost: h\r\nX: ",
        post(b"Content-Length: 5", body=b"x"),
        post(CHUNKED, body=b"5\r\nx"),
    ],
)
async def test_slow_requests_time_out(data: bytes, serve: Serve, dial: Dial) -> None:
    wire = await dial(await serve(handler, header_timeout=0.05, body_timeout=0.05))
    await wire.send(data)
    answer = await wire.answer()
    assert (answer.status, answer.error["type"]) == (408, "RequestTimeoutError")
    wire.writer.write_eof()
    assert await wire.rest() == b""


async def test_a_dripping_body_times_out(serve: Serve, dial: Dial) -> None:
    wire = await dial(await serve(handler, body_timeout=0.1, body_min_rate=1_000_000))
    await wire.send(post(b"Content-Length: 50000000"))

    async def drip() -> None:
        while True:
            await wire.send(b"x")
            await asyncio.sleep(0)

    dripping = asyncio.create_task(drip())
    assert (await wire.answer()).status == 408
    dripping.cancel()
    await asyncio.gather(dripping, return_exceptions=True)


@pytest.mark.parametrize("data", [b"", b"\r\n\r\n", b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"])
async def test_idle_connections_are_closed_silently(data: bytes, serve: Serve, dial: Dial) -> None:
    wire = await dial(await serve(handler, header_timeout=0.05, idle_timeout=0.05))
    await wire.send(data)
    if data.startswith(b"GET"):
        assert (await wire.answer()).status == 200
    assert await wire.rest() == b""
