"""Passes an engine's answer to the client, without what is not for clients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from contraflow.web import (
    Responder,
    SseFilter,
    UpstreamError,
    UpstreamResponse,
    end_to_end,
    take_transfer_params,
)
from contraflow.web.headers import HeaderPair, Headers

_MAX_JSON_BYTES = 256 * 1024 * 1024
_DONE = (b"data: [DONE]\n\n", b"data: [DONE]\r\n\r\n")
_OURS = frozenset({b"content-length", b"date", b"server", b"x-request-id", b"x-contraflow"})


async def relay(
    response: UpstreamResponse,
    responder: Responder,
    own_headers: Headers,
    on_first_byte: Callable[[], None],
) -> None:
    """Pass a response on as it arrives: an event stream in pieces, anything else whole.

    ``on_first_byte`` is called before the first byte of the body is written.
    """
    headers = client_headers(response.headers, own_headers)
    content_type = response.header(b"content-type") or b""
    if content_type.startswith(b"text/event-stream"):
        await _stream(response, responder, headers, on_first_byte)
        return
    body, _ = take_transfer_params(await response.read(_MAX_JSON_BYTES))
    on_first_byte()
    responder.respond(response.status, headers, body)


def client_headers(engine_headers: Headers, own_headers: Headers) -> list[HeaderPair]:
    """An engine's headers for the client, followed by our own."""
    kept = [pair for pair in end_to_end(engine_headers) if pair[0] not in _OURS]
    return [*kept, *own_headers]


async def _stream(
    response: UpstreamResponse,
    responder: Responder,
    headers: list[HeaderPair],
    on_first_byte: Callable[[], None],
) -> None:
    events = SseFilter()
    responder.start(response.status, headers)
    first = True
    async for data in response.iter_raw():
        if not (passed := events.feed(data)):
            continue
        if first:
            on_first_byte()
            first = False
        await responder.write(passed)
        if passed.endswith(_DONE):
            # Many clients leave at this event; the turn has ended well all the same.
            responder.finish()
            await _drain(response)
            return
    if rest := events.finish():
        await responder.write(rest)
    responder.finish()


async def _drain(response: UpstreamResponse) -> None:
    """Read to the end, so that the connection can serve again."""
    with suppress(UpstreamError):
        async for _ in response.iter_raw():
            pass
