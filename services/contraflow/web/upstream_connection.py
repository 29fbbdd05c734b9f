"""One connection to an upstream: one request at a time."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import httptools

from contraflow.web.headers import HeaderPair
from contraflow.web.limits import ClientLimits
from contraflow.web.origin import Origin
from contraflow.web.upstream_errors import (
    UpstreamError,
    UpstreamProtocolError,
    UpstreamReset,
)
from contraflow.web.upstream_response import UpstreamResponse

if TYPE_CHECKING:
    from contraflow.web.pool import OriginPool

_JOIN_BELOW = 16 * 1024
_NO_BODY = (204, 304)


class UpstreamConnection(asyncio.Protocol):
    """HTTP/1.1 on one transport. Whatever is not perfectly in order ends the connection."""

    __slots__ = (
        "_delimited_by_close", "_eof", "_gap", "_head_only", "_header_bytes", "_headers",
        "_limits", "_parser", "_paused", "_pieces", "_poll", "_pool", "_response", "_reusable",
        "_transport", "bytes_sent", "idle_since", "on_body", "origin", "response_started",
        "reused", "usable",
    )  # fmt: skip

    def __init__(self, origin: Origin, limits: ClientLimits, pool: OriginPool) -> None:
        self.origin = origin
        self._limits = limits
        self._pool = pool
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append  # called for every chunk: no Python frame in between
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._response: UpstreamResponse | None = None
        self._headers: list[HeaderPair] = []
        self._header_bytes = 0
        self._gap = 0
        self._paused = False
        self._reusable = False
        self._delimited_by_close = False
        self._head_only = False
        self._eof = False
        self._transport: asyncio.Transport | None = None
        self.usable = False
        self.reused = False
        self.bytes_sent = False
        self.response_started = False
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.usable = True
        sock = transport.get_extra_info("socket")
        self._poll = select.poll()
        self._poll.register(sock.fileno(), select.POLLIN | select.POLLERR | select.POLLHUP)
        # A decode may be silent for minutes behind a queue; a host that vanished must still show.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def quiet(self) -> bool:
        """Whether an idle connection is still open, as far as this machine's kernel knows."""
        return self._alive() is not None and not self._poll.poll(0)

    def _alive(self) -> asyncio.Transport | None:
        transport = self._transport
        usable = self.usable and transport is not None and not transport.is_closing()
        return transport if usable else None

    # Exchanges.

    def send(
        self, head: bytes, body: Sequence[bytes], *, head_only: bool, chunk_timeout: float | None
    ) -> UpstreamResponse:
        """Write a request; the response object fills as the answer arrives."""
        response = UpstreamResponse(self, chunk_timeout)
        self._response = response
        self._reusable = False
        self._delimited_by_close = False
        self._head_only = head_only
        self.response_started = False
        transport = self._alive()
        if transport is None:
            response.fail(self.error(UpstreamReset, "closed the connection before the request"))
            return response
        self.bytes_sent = True
        if sum(map(len, body)) < _JOIN_BELOW:
            transport.write(b"".join((head, *body)))
        else:
            transport.writelines((head, *body))
        return response

    def release(self) -> bool:
        """End the exchange. True if the connection can serve another, else it is aborted."""
        self._response = None
        transport = self._alive()
        if transport is None or not self._reusable or transport.get_write_buffer_size():
            self.abort()
            return False
        self.resume()
        self.reused = True
        self.bytes_sent = False
        self.response_started = False
        return True

    def abort(self) -> None:
        """Close at once: how an engine learns that a request is over."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def resume(self) -> None:
        """The reader has taken what was buffered."""
        if self._paused and (transport := self._alive()) is not None:
            self._paused = False
            transport.resume_reading()

    @property
    def paused(self) -> bool:
        """Whether reading waits for the response's reader."""
        return self._paused

    def error(self, kind: type[UpstreamError], message: str) -> UpstreamError:
        """An error that carries this exchange's facts."""
        return kind(
            self.origin, message, bytes_sent=self.bytes_sent,
            response_started=self.response_started, reused=self.reused,
        )  # fmt: skip

    def _broken(self, message: str) -> None:
        if self._response is not None:
            self._response.fail(self.error(UpstreamProtocolError, message))
        self.abort()

    # The transport's side.

    def data_received(self, data: bytes) -> None:
        if not self.usable or self._parser is None:
            return
        if self._response is None or self._response.complete:
            self.abort()  # bytes that nobody asked for
            return
        self.response_started = True
        self._gap += len(data)
        try:
            self._parser.feed_data(data)
            if self._pieces:
                self._hand_over()
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self._pieces:
                self._hand_over()
            cause = error.__context__
            self._broken(str(cause) if isinstance(cause, ValueError) else "malformed response")
            return
        if self._gap > self._limits.max_header_bytes:
            self._broken("headers or trailers too long")

    def eof_received(self) -> None:
        self._eof = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        self._parser = None
        response = self._response
        if response is not None and not response.complete:
            if self._delimited_by_close and self._eof and exc is None:
                response.finish()
            else:
                what = "response" if self.response_started else "request"
                response.fail(self.error(UpstreamReset, f"closed the connection during the {what}"))
        self._pool.lost(self)

    # Callbacks of httptools.

    def on_message_begin(self) -> None:
        self._headers = []
        self._header_bytes = 0
        if self._response is None or self._response.complete:
            raise ValueError("more than one response")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value) + 4
        if self._header_bytes > self._limits.max_header_bytes:
            raise ValueError("headers or trailers too long")
        if len(self._headers) >= self._limits.max_headers:
            raise ValueError("too many headers")
        self._headers.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        response, parser = self._response, self._parser
        if response is None or parser is None:
            return
        self._gap = 0
        status = parser.get_status_code()
        if status < 200:
            return
        if parser.get_http_version() not in ("1.1", "1.0"):
            raise ValueError("not HTTP/1.1")
        framed = status in _NO_BODY or self._head_only
        for name, value in self._headers:
            if name == b"content-length":
                framed = True
            elif name == b"transfer-encoding":
                if value.lower() != b"chunked":
                    raise ValueError("unsupported transfer coding")
                framed = True
        self._delimited_by_close = not framed
        headers, self._headers = self._headers, []
        response.received_headers(status, headers)
        if self._head_only:
            response.finish()  # llhttp would wait for a body: the connection is not used again

    def _hand_over(self, last: bool = False) -> None:
        """Give the response what the parser has found of its body."""
        pieces, response = self._pieces, self._response
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._gap = 0
        if response is None or response.complete:
            return
        waiting = response.received(data, last)
        if waiting > self._limits.read_buffer_bytes and not self._paused:
            transport = self._alive()
            if transport is not None:
                self._paused = True
                transport.pause_reading()

    def on_message_complete(self) -> None:
        response, parser = self._response, self._parser
        if response is None or parser is None or not response.status or response.complete:
            return
        if self._pieces:
            self._hand_over(last=True)
        self._gap = 0
        self._reusable = parser.should_keep_alive()
        response.finish()
