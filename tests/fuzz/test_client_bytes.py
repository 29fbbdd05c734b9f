"""Bytes that are HTTP, almost: read in one way only, refused, or waited for."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.front_door import GOOD, FrontDoor, Reply
from tests.fuzz.stage import Stage

SMUGGLED = b"smuggled"
BODY = json.dumps(GOOD).encode()
HIDDEN = b"POST /v1/chat/completions HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n%b" % (
    len(SMUGGLED) + 2,
    b"{%b}" % SMUGGLED,
)
OF_THE_PROTOCOL = (501, 505)
"""Answers to what the server does not speak, though they begin with a 5."""


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)


# Each is read in different ways by different parsers.
ambiguous = st.sampled_from(
    [
        b"Content-Length: %d\r\nTransfer-Encoding: chunked" % len(BODY),
        b"Transfer-Encoding: chunked\r\nContent-Length: 5",
        b"Content-Length: 5\r\nContent-Length: %d" % len(BODY),
        b"Content-Length: %d, %d" % (len(BODY), len(BODY)),
        b"Content-Length: +%d" % len(BODY),
        b"Content-Length: -1",
        b"Content-Length: 0x10",
        b"Content-Length: 1e1",
        b"Content-Length: 18446744073709551616",
        b"Content-Length : %d" % len(BODY),
        b"Content-Length: \x00%d" % len(BODY),
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: chunked, identity",
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding:\x0bchunked",
        b"Transfer-Encoding: identity\r\nContent-Length: %d" % len(BODY),
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding\r\n : chunked",
        b"X: y\r\n Content-Length: %d" % len(BODY),
        b"X: y\nContent-Length: %d" % len(BODY),
        b"X: y\rContent-Length: %d" % len(BODY),
    ]
)
bodies = st.sampled_from([BODY, chunked(BODY), b"0\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n"])


@given(ambiguous, bodies, st.booleans())
def test_what_could_be_read_in_two_ways_reaches_no_engine(
    door: Stage[FrontDoor], framing: bytes, body: bytes, split: bool
) -> None:
    here = door.world
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: here\r\n%b\r\n\r\n" % framing
    pieces = [head, body + HIDDEN] if split else [head + body + HIDDEN]

    async def example() -> None:
        here.reset()
        got = await here.send(*pieces)
        assert [400 <= reply.status < 500 or reply.status == 501 for reply in got] == [True]
        assert got[0].headers["connection"] == "close"
        assert not here.prefill.sent
        assert not here.decode.sent
        await here.nothing_left()

    door.run(example())


lines = st.sampled_from(
    [b"POST /v1/chat/completions HTTP/1.1", b"GET /health HTTP/1.1", b"GET /metrics HTTP/1.0",
     b"GET /v1/models HTTP/1.1", b"POST http://here/v1/messages HTTP/1.1", b"GET / HTTP/2.0",
     b"PRI * HTTP/2.0", b"GET /", b"CONNECT here:80 HTTP/1.1", b"OPTIONS * HTTP/1.1",
     b"DESCRIBE rtsp://x RTSP/1.0", b"POST //v1/completions?a#b HTTP/1.1", b"\x16\x03\x01\x02",
     b"POST /v1/completions HTTP/1.1", b"", b"G\xc3\x89T / HTTP/1.1", b"TRACE /health HTTP/1.1"]
)  # fmt: skip
heads = st.lists(
    st.sampled_from(
        [b"Host: here", b"Host: here", b"Host: ", b"Connection: close", b"Connection: upgrade",
         b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__", b"Expect: 100-continue",
         b"Expect: gold", b"Transfer-Encoding: chunked", b"Content-Length: %d" % len(BODY),
         b"Content-Length: 0", b"Content-Length: 99999999999", b"Trailer: X", b"TE: trailers",
         b"X-Big: " + b"x" * 70_000, b"X: \xff\xfe", b"X: \x01", b"X", b": y", b"X : y", b""]
        + [b"Many: %d" % number for number in range(3)]
    ),
    max_size=6,
)  # fmt: skip
tails = st.sampled_from([b"", BODY, chunked(BODY), BODY + HIDDEN, b"5;x=y\r\nhello\r\nz\r\n"])


@st.composite
def http_bytes(draw: st.DrawFn) -> list[bytes]:
    """One or two requests, with something changed, in pieces."""
    data = b""
    for _ in range(draw(st.integers(1, 2))):
        data += b"\r\n".join([draw(lines), *draw(heads), b"", b""]) + draw(tails)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(max_size=4)) + data[at + draw(st.integers(0, 3)) :]
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=4)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def is_sound(reply: Reply) -> bool:
    """Whole, and no failure of ours."""
    if reply.status == 503 and b'"status"' in reply.body:
        return True  # that is /health's answer where something is missing
    return reply.complete and (reply.status < 500 or reply.status in OF_THE_PROTOCOL)


@given(http_bytes())
def test_any_bytes_are_answered_or_the_connection_ends(
    door: Stage[FrontDoor], pieces: list[bytes]
) -> None:
    here = door.world

    async def example() -> None:
        here.reset()
        for reply in await here.send(*pieces):
            assert is_sound(reply), reply
        await here.nothing_left()

    door.run(example())


def test_a_plain_turn_goes_well_after_all_that(door: Stage[FrontDoor]) -> None:
    door.run(door.world.still_serves())
