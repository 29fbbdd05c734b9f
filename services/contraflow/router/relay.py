"""Passes an engine's answer to the client, without what is not for clients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from contraflow.router.aborted import is_aborted, tell_of_abort
from contraflow.router.opening import Opening, opening_of
from contraflow.router.replies import ReplyReader
from contraflow.web import (
    SseFilter,
    UpstreamError,
    UpstreamReset,
    UpstreamResponse,
    end_to_end,
    take_transfer_params,
)
from contraflow.web.headers import HeaderPair, Headers

_MAX_JSON_BYTES = 256 * 1024 * 1024
_DONE = (
    b"data: [DONE]\n\n",
    b"data: [DONE]\r\n\r\n",
    b'data: {"type":"message_stop"}\n\n',  # of the Messages API
)
# The quote and the end of the line could not stand like this inside of a JSON string.
_ERRORS = (b'data: {"error"', b"event: error\n")
_OURS = frozenset({b"content-length", b"date", b"server", b"x-request-id", b"x-contraflow"})


class Unanswered(Exception):
    """The engine failed before the first byte of its answer: nothing was passed on."""


class Aborted(Unanswered):
    """The engine is being stopped. Something may have been passed on of a stream."""

    def __init__(self) -> None:
        super().__init__("the engine is being stopped")


class ClientResponse(Protocol):
    """Where the answer of a turn goes: what turns use of ``web.Responder``."""

    @property
    def started(self) -> bool: ...
    @property
    def status(self) -> int: ...
    def respond(self, status: int, headers: Headers = (), body: bytes = b"") -> None: ...
    def start(self, status: int, headers: Headers = ()) -> None: ...
    async def write(self, data: bytes) -> None: ...
    def finish(self) -> None: ...
    def abort(self) -> None: ...


async def relay(
    response: UpstreamResponse,
    responder: ClientResponse,
    own_headers: Headers,
    on_first_byte: Callable[[], None],
    on_end: Callable[[], None],
    reader: ReplyReader | None = None,
    *,
    keep_failure: bool = False,
) -> None:
    """Pass a response on as it arrives: an event stream in pieces, anything else whole.

    ``on_first_byte`` is called before the first byte of the body is written, ``on_end`` when
    a response of status 200 is complete and no event was an error, if it can be before its end
    is written: its client may go on at once. ``reader`` is shown what passes. With
    ``keep_failure`` a failure of the engine that comes before anything else is not passed on:
    Unanswered is raised. Aborted is raised as soon as the engine tells it.
    """
    if keep_failure and response.status >= 500:
        raise Unanswered(f"status {response.status}")
    if response.status != 200:
        on_end, reader = _nothing, None
    headers = client_headers(response.headers, own_headers)
    content_type = response.header(b"content-type") or b""
    if content_type.startswith(b"text/event-stream"):
        try:
            await _stream(
                response, responder, headers, on_first_byte, on_end, reader,
                keep_failure=keep_failure,
            )  # fmt: skip
        except UpstreamReset as error:
            # The headers of a stream come before the engine knows whether it gets its blocks.
            if responder.started or not keep_failure:
                raise
            raise Unanswered(str(error)) from error
        return
    body, _ = take_transfer_params(await response.read(_MAX_JSON_BYTES))
    if response.status == 200 and is_aborted(body):
        raise Aborted
    if reader is not None:
        reader.read(body)
    on_first_byte()
    on_end()
    responder.respond(response.status, headers, body)


def client_headers(engine_headers: Headers, own_headers: Headers) -> list[HeaderPair]:
    """An engine's headers for the client, followed by our own."""
    kept = [pair for pair in end_to_end(engine_headers) if pair[0] not in _OURS]
    return [*kept, *own_headers]


async def _stream(
    response: UpstreamResponse,
    responder: ClientResponse,
    headers: list[HeaderPair],
    on_first_byte: Callable[[], None],
    on_end: Callable[[], None],
    reader: ReplyReader | None,
    *,
    keep_failure: bool,
) -> None:
    events = SseFilter()
    first, failed = True, False
    held = b""
    async for data in response.iter_raw():
        if not (passed := events.feed(data)):
            continue
        if tell_of_abort(passed):
            raise Aborted
        if first:
            opening, passed = opening_of(passed), held + passed
            if opening is Opening.ABORTED:
                raise Aborted
            if opening is Opening.FAILED and keep_failure:
                raise Unanswered("an error in place of an answer")
            if opening is Opening.SILENT:
                held = passed
                continue
            responder.start(response.status, headers)
            on_first_byte()
            first = False
        if reader is not None:
            reader.feed(passed)
        failed = failed or any(error in passed for error in _ERRORS)
        done = passed.endswith(_DONE)
        if done and not failed:
            on_end()
        await responder.write(passed)
        if done:
            # Many clients leave at this event; the turn has ended well all the same.
            responder.finish()
            await _drain(response)
            return
    if not responder.started:
        responder.start(response.status, headers)
        await responder.write(held)
    if not failed:
        on_end()
    if rest := events.finish():
        await responder.write(rest)
    responder.finish()


def _nothing() -> None:
    pass


async def _drain(response: UpstreamResponse) -> None:
    """Read to the end, so that the connection can serve again."""
    with suppress(UpstreamError):
        async for _ in response.iter_raw():
            pass
