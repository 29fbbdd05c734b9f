"""A response from an upstream, read as it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from contraflow.router.http.headers import Headers, find_header
from contraflow.router.http.upstream_errors import (
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeout,
)

if TYPE_CHECKING:
    from contraflow.router.http.upstream_connection import UpstreamConnection


class UpstreamResponse:
    """Status, headers and a body that is handed out in the pieces in which it came.

    One reader at a time. While `read_buffer_bytes` wait for it, no more is read from the upstream.
    """

    __slots__ = (
        "_buffer", "_buffered", "_chunk_timeout", "_connection", "_error", "_waiter", "complete",
        "headers", "status",
    )  # fmt: skip

    def __init__(self, connection: UpstreamConnection, chunk_timeout: float | None) -> None:
        self.status = 0
        self.headers: Headers = ()
        self.complete = False
        self._connection = connection
        self._chunk_timeout = chunk_timeout
        self._buffer: list[bytes] = []
        self._buffered = 0
        self._error: UpstreamError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def reused(self) -> bool:
        """Whether the connection had served a request before."""
        return self._connection.reused

    @property
    def buffered(self) -> int:
        """Body bytes received and not yet read."""
        return self._buffered

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header (lower-case name), or None."""
        return find_header(self.headers, name)

    async def read_chunk(self) -> bytes:
        """What has arrived, waiting for something if nothing has; b"" at the end.

        Raises UpstreamReset, UpstreamTimeout (no byte for `chunk_timeout`) or
        UpstreamProtocolError, after the bytes that came before the failure.
        """
        while not self._buffer:
            if self.complete:
                return b""
            if self._error is not None:
                raise self._error
            await self.wait(self._chunk_timeout, "body")
        buffer = self._buffer
        data = buffer[0] if len(buffer) == 1 else b"".join(buffer)
        buffer.clear()
        self._buffered = 0
        self._connection.resume()
        return data

    async def iter_raw(self) -> AsyncIterator[bytes]:
        """The body's bytes as they arrive, transfer coding removed. Raises as `read_chunk`."""
        while data := await self.read_chunk():
            yield data

    async def read(self, limit: int) -> bytes:
        """The whole body. UpstreamProtocolError if it is longer than `limit` bytes."""
        parts: list[bytes] = []
        size = 0
        while data := await self.read_chunk():
            parts.append(data)
            size += len(data)
            if size > limit:
                raise self._connection.error(
                    UpstreamProtocolError, f"the body is longer than {limit} bytes"
                )
        return parts[0] if len(parts) == 1 else b"".join(parts)

    # The connection's side.

    async def wait(self, timeout: float | None, phase: str) -> None:
        """Wait for a change of any kind: headers, bytes, the end or an error."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(timeout, self._timed_out, phase) if timeout is not None else None
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    async def wait_for_headers(self, timeout: float | None) -> None:
        """Return once status and headers are there, else raise."""
        while not self.status:
            if self._error is not None:
                raise self._error
            await self.wait(timeout, "headers")

    def _timed_out(self, phase: str) -> None:
        connection = self._connection
        self.fail(
            UpstreamTimeout(
                connection.origin, phase, bytes_sent=connection.bytes_sent,
                response_started=connection.response_started, reused=connection.reused,
            )
        )  # fmt: skip
        connection.abort()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def received_headers(self, status: int, headers: Headers) -> None:
        self.status = status
        self.headers = headers
        self._wake()

    def received(self, data: bytes) -> int:
        """Take body bytes; returns how many are waiting for the reader."""
        self._buffer.append(data)
        self._buffered += len(data)
        self._wake()
        return self._buffered

    def finish(self) -> None:
        if self._error is None:
            self.complete = True
            self._wake()

    def fail(self, error: UpstreamError) -> None:
        if not self.complete and self._error is None:
            self._error = error
            self._wake()
