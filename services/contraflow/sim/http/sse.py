"""Server-sent events."""

from __future__ import annotations

from collections.abc import Awaitable

import msgspec

from contraflow.web import ApiError, Responder

DONE = b"data: [DONE]\n\n"
_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
)
_encoder = msgspec.json.Encoder()


def event(data: object, name: str = "") -> bytes:
    """One event with JSON data."""
    head = f"event: {name}\n".encode() if name else b""
    return b"%bdata: %b\n\n" % (head, _encoder.encode(data))


async def stream(responder: Responder, run: Awaitable[None], last: bytes = DONE) -> None:
    """A whole stream: what ``run`` writes, an error event if it fails, and ``last``."""
    responder.start(200, _HEADERS)
    try:
        await run
    except ApiError as error:
        await responder.write(b"data: %b\n\n" % error.body())
    responder.finish(last)
