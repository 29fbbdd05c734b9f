"""A response from an upstream, read as it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

from contraflow.web.headers import Headers, find_header
from contraflow.web.upstream_errors import (
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeout,
)

if TYPE_CHECKING:
    from contraflow.web.upstream_connection import UpstreamConnection


class UpstreamResponse:
    """Status, headers and a body that is handed out in the pieces in which it came.

    One reader at a time. While `read_buffer_bytes` wait for it, no more is read from the upstream.
    """

    __slots__ = (
        "_buffer", "_buffered", "_chunk_timeout", "_connection", "_consume", "_error", "_full",
        "_heard", "_refusal", "_timer", "_waiter", "complete", "headers", "status",
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
        self._consume: Callable[[bytes], bool] | None = None
        self._refusal: Exception | None = None
        self._full = False
        self._heard = 0.0
        self._timer: asyncio.TimerHandle | None = None

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
        data = self._take()
        self._connection.resume()
        return data

    def _take(self) -> bytes:
        buffer = self._buffer
        data = buffer[0] if len(buffer) == 1 else b"".join(buffer)
        buffer.clear()
        self._buffered = 0
        return data

    async def iter_raw(self) -> AsyncIterator[bytes]:
        """The body's bytes as they arrive, transfer coding removed. Raises as `read_chunk`."""
        while data := await self.read_chunk():
            yield data

    async def pump(
        self, consume: Callable[[bytes], bool], drain: Callable[[], Awaitable[None]]
    ) -> bytes:
        """Give the body to `consume` piece by piece, within the very event that brings a piece.

        That spares a task switch per piece, most of what a streamed token costs. When `consume`
        returns False, nothing more is given until `drain` has returned. The last bytes, if the end
        came together with them, are returned instead, for the caller to send with the end of its
        own. Raises what `consume` and `drain` raise, and as `read_chunk`.
        """
        while True:
            if self.complete:
                return self._take()
            if self._buffer:
                if not consume(self._take()):
                    await drain()
            elif self._error is not None:
                raise self._error
            else:
                self._connection.resume()
                if not await self._consumed_by(consume):
                    await drain()

    async def _consumed_by(self, consume: Callable[[bytes], bool]) -> bool:
        """Until the end, an error, or (False) `consume` can take no more."""
        self._consume = consume
        self._full = False
        try:
            await self.wait(self._chunk_timeout, "body")
        finally:
            self._consume = None
        if self._refusal is not None:
            raise self._refusal
        return not self._full

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
        if timeout is not None:
            self._heard = loop.time()
            self._timer = loop.call_later(timeout, self._check_silence, timeout, phase)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _check_silence(self, timeout: float, phase: str) -> None:
        loop = asyncio.get_running_loop()
        left = self._heard + timeout - loop.time()
        if left > 0:  # a piece went to the consumer meanwhile
            self._timer = loop.call_later(left, self._check_silence, timeout, phase)
        else:
            self._timed_out(phase)

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

    def received(self, data: bytes, last: bool) -> int:
        """Take body bytes; returns how many are waiting for the reader."""
        if self._consume is not None and not last:
            self._give(self._consume, data)
            return 0
        self._buffer.append(data)
        self._buffered += len(data)
        self._wake()
        return self._buffered

    def _give(self, consume: Callable[[bytes], bool], data: bytes) -> None:
        if self._chunk_timeout is not None:
            self._heard = asyncio.get_running_loop().time()
        try:
            if consume(data):
                return
        except Exception as error:
            self._refusal = error
        self._consume = None
        self._full = True
        self._wake()

    def finish(self) -> None:
        if self._error is None:
            self.complete = True
            self._wake()

    def fail(self, error: UpstreamError) -> None:
        if not self.complete and self._error is None:
            self._error = error
            self._wake()
