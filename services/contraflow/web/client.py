"""The upstream client: pooled HTTP/1.1, responses handed on as they arrive."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from contraflow.web.headers import Headers, render
from contraflow.web.limits import ClientLimits
from contraflow.web.origin import Origin
from contraflow.web.pool import OriginPool
from contraflow.web.upstream_connection import UpstreamConnection
from contraflow.web.upstream_errors import UpstreamReset
from contraflow.web.upstream_response import UpstreamResponse

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_OURS = frozenset({b"host", b"content-length", b"transfer-encoding", b"connection"})


class UpstreamClient:
    """One per process; connections are pooled per origin.

        async with client.request("POST", origin, path, headers=..., body=...) as response:
            async for data in response.iter_raw(): ...

    Leaving the block with the response unread, by an exception or a cancellation included, aborts
    the connection at once.
    """

    def __init__(self, limits: ClientLimits | None = None) -> None:
        self.limits = limits or ClientLimits()
        self._pools: dict[Origin, OriginPool] = {}

    def request(
        self,
        method: str,
        origin: Origin,
        path: str,
        *,
        headers: Headers = (),
        body: bytes | Sequence[bytes] = b"",
        header_timeout: float | None = None,
        chunk_timeout: float | None = None,
    ) -> Exchange:
        """Prepare a request; it is sent when the returned context is entered.

        `headers` must not hold Host, Content-Length, Transfer-Encoding or Connection (ValueError);
        `body` may come in several pieces. `header_timeout` defaults to the client's;
        `chunk_timeout`, the longest silence inside the body, to none.

        Entering raises UpstreamConnectError, UpstreamTimeout, UpstreamReset or
        UpstreamProtocolError. Only GET, HEAD and OPTIONS are sent again, once, when a reused
        connection is closed without a byte of response: for anything else nobody can prove that
        the upstream has not begun.
        """
        parts = (body,) if isinstance(body, bytes) else tuple(body)
        head = _render_head(method, origin, path, headers, sum(map(len, parts)))
        timeout = self.limits.header_timeout if header_timeout is None else header_timeout
        return Exchange(self.pool(origin), method, head, parts, timeout, chunk_timeout)

    def pool(self, origin: Origin) -> OriginPool:
        """The origin's pool, for its counts."""
        pool = self._pools.get(origin)
        if pool is None:
            pool = self._pools[origin] = OriginPool(origin, self.limits)
        return pool

    def forget(self, origin: Origin) -> None:
        """Close an origin's connections, those in use included: its engine is gone."""
        pool = self._pools.pop(origin, None)
        if pool is not None:
            pool.close()

    def close(self) -> None:
        """Abort every connection."""
        for origin in list(self._pools):
            self.forget(origin)


class Exchange:
    """One request and its response, as an async context.

    While `sent` is False, also after a cancellation, no byte of the request has left.
    """

    __slots__ = (
        "_body", "_chunk_timeout", "_connection", "_head", "_header_timeout", "_method", "_pool",
        "sent",
    )  # fmt: skip

    def __init__(
        self,
        pool: OriginPool,
        method: str,
        head: bytes,
        body: Sequence[bytes],
        header_timeout: float,
        chunk_timeout: float | None,
    ) -> None:
        self._pool = pool
        self._method = method
        self._head = head
        self._body = body
        self._header_timeout = header_timeout
        self._chunk_timeout = chunk_timeout
        self._connection: UpstreamConnection | None = None
        self.sent = False

    async def __aenter__(self) -> UpstreamResponse:
        try:
            return await self._send(fresh=False)
        except UpstreamReset as reset:
            unanswered = reset.reused and not reset.response_started
            if not (unanswered and self._method in _SAFE):
                raise
        return await self._send(fresh=True)

    async def _send(self, *, fresh: bool) -> UpstreamResponse:
        connection = await self._pool.acquire(fresh=fresh)
        self._connection = connection
        self.sent = True
        try:
            response = connection.send(
                self._head,
                self._body,
                head_only=self._method == "HEAD",
                chunk_timeout=self._chunk_timeout,
            )
            await response.wait_for_headers(self._header_timeout)
        except BaseException:
            self._release()
            raise
        return response

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._release()

    def _release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.release(connection)


def _render_head(method: str, origin: Origin, path: str, headers: Headers, length: int) -> bytes:
    if not path.startswith("/") or not path.isascii() or not path.isprintable() or " " in path:
        raise ValueError("not a request path")
    if any(name in _OURS for name, _ in headers):
        raise ValueError("host, length and connection headers are set by the client")
    host = origin.authority.encode()
    line = b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (method.encode(), path.encode(), host)
    if length or method in _WITH_BODY:
        return b"%b%bcontent-length: %d\r\n\r\n" % (line, render(headers), length)
    return b"%b%b\r\n" % (line, render(headers))
