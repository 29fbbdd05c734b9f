"""Writes one response."""

from __future__ import annotations

from http import HTTPStatus
from typing import Protocol

import msgspec

from contraflow.web.errors import ApiError, ClientDisconnected
from contraflow.web.headers import HeaderPair, Headers, render
from contraflow.web.request import Request

_STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}
_JSON: HeaderPair = (b"content-type", b"application/json")
_COPY_BELOW = 16 * 1024
_encoder = msgspec.json.Encoder()


class ResponseSink(Protocol):
    """The connection under a responder."""

    congested: bool
    closing: bool

    @property
    def date(self) -> bytes: ...
    def hold(self, head: bytes) -> None: ...
    def send(self, *parts: bytes) -> None: ...
    async def drain(self) -> None: ...
    def response_finished(self, keep_alive: bool) -> None: ...
    def abort(self) -> None: ...


class Responder:
    """The answer to one request: `respond` (or `send_json`) once, or `start`, `write`, `finish`.

    Without a Content-Length in its headers a started response is chunked for HTTP/1.1 clients and
    ends with the connection for HTTP/1.0 ones. `x-request-id` and `date` are added where missing;
    `connection` and `transfer-encoding` belong to this class. A response that is not finished
    when the handler ends is cut off, so that the client sees it is incomplete.
    """

    __slots__ = (
        "_bodiless", "_chunked", "_keep_alive", "_left", "_request", "_sink", "finished",
        "started", "status",
    )  # fmt: skip

    def __init__(self, sink: ResponseSink, request: Request, keep_alive: bool) -> None:
        self._sink = sink
        self._request = request
        self._keep_alive = keep_alive
        self._bodiless = False
        self._chunked = False
        self._left: int | None = None
        self.started = False
        self.finished = False
        self.status = 0

    def respond(self, status: int, headers: Headers = (), body: bytes = b"") -> None:
        """Send a complete response; Content-Length is set here."""
        length = [] if status == 204 else [(b"content-length", b"%d" % len(body))]
        self.start(status, [*headers, *length])
        self.finish(body)

    def send_json(self, status: int, value: object, headers: Headers = ()) -> None:
        """Send a value (anything that msgspec encodes; bytes go out as they are) as JSON."""
        body = value if isinstance(value, bytes) else _encoder.encode(value)
        self.respond(status, [_JSON, *headers], body)

    def send_error(self, error: ApiError) -> None:
        """Send an error in the OpenAI shape."""
        self.send_json(error.status, error.body(), error.headers)

    def start(self, status: int, headers: Headers = ()) -> None:
        """Send status and headers. ValueError for a header that would break the framing."""
        if self.started:
            raise RuntimeError("the response has already started")
        head = _STATUS_LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status
        lines = render([*headers, *self._own_headers(status, headers)])
        self.started = True
        self.status = status
        self._sink.hold(b"%b%b\r\n" % (head, lines))

    def _own_headers(self, status: int, headers: Headers) -> list[HeaderPair]:
        own: list[HeaderPair] = []
        length: int | None = None
        names = set()
        for name, value in headers:
            names.add(name)
            if name == b"content-length":
                length = int(value)
            elif name in (b"connection", b"transfer-encoding"):
                raise ValueError("connection and transfer-encoding are set by the server")
        self._frame(status, length)
        if self._chunked:
            own.append((b"transfer-encoding", b"chunked"))
        if not self._keep_alive:
            own.append((b"connection", b"close"))
        elif not self._request.http11:
            own.append((b"connection", b"keep-alive"))
        if b"x-request-id" not in names:
            own.append((b"x-request-id", self._request.id.encode()))
        if b"date" not in names:
            own.append((b"date", self._sink.date))
        return own

    def _frame(self, status: int, length: int | None) -> None:
        """Choose the framing. `_left`: body bytes still owed; None: as many as come."""
        if self._request.method == "HEAD" or status in (204, 304):
            self._left = 0
            self._bodiless = True
            return
        self._left = length
        if length is None:
            self._chunked = self._request.http11
            self._keep_alive = self._keep_alive and self._chunked

    async def write(self, data: bytes) -> None:
        """Send body bytes; waits while the client takes none.

        Raises ClientDisconnected, and ValueError if the announced length would be exceeded.
        Bytes written to a response without body (HEAD, 204, 304) are dropped.
        """
        self.write_nowait(data)
        await self.drain()

    def write_nowait(self, data: bytes) -> bool:
        """Send body bytes without waiting; False asks the caller to `drain` before the next.

        Otherwise as `write`; bytes for a client that is gone are dropped.
        """
        self._check_open()
        if data and self._counted(len(data)):
            self._sink.send(*self._framed(data))
        return not (self._sink.congested or self._sink.closing)

    async def drain(self) -> None:
        """Wait while the client takes nothing. Raises ClientDisconnected."""
        if self._sink.congested:
            await self._sink.drain()
        if self._sink.closing:
            raise ClientDisconnected("the client closed the connection")

    def _check_open(self) -> None:
        if not self.started or self.finished:
            raise RuntimeError("the response is not open")

    def _framed(self, data: bytes) -> tuple[bytes, ...]:
        if not self._chunked:
            return (data,)
        if len(data) < _COPY_BELOW:
            return (b"%x\r\n%b\r\n" % (len(data), data),)
        return (b"%x\r\n" % len(data), data, b"\r\n")

    def _counted(self, size: int) -> bool:
        if self._left is None:
            return True
        if self._bodiless:
            return False
        if size > self._left:
            raise ValueError("the body is longer than its Content-Length")
        self._left -= size
        return True

    def finish(self, data: bytes = b"") -> None:
        """End the response; `data` are its last bytes, which then cost no write of their own.

        After this a disconnect no longer cancels the handler.
        """
        self._check_open()
        parts = self._framed(data) if data and self._counted(len(data)) else ()
        if self._left:
            raise ValueError("the body is shorter than its Content-Length")
        self.finished = True
        self._sink.send(*parts, *((b"0\r\n\r\n",) if self._chunked else ()))
        self._sink.response_finished(self._keep_alive)

    def request_disconnected(self) -> None:
        """For the connection: the client left before the response was finished."""
        self._request.mark_disconnected()

    def abort(self) -> None:
        """Cut the connection, so that the client sees that the response is incomplete."""
        self.finished = True
        self._sink.abort()
