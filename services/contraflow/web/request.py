"""A request as a handler sees it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable

from contraflow.web.headers import HeaderPair, find_header

_CLIENT_ID = re.compile(rb"[A-Za-z0-9._:\-]{1,128}\Z")


class Request:
    """One HTTP request, read completely.

    `path` is as sent, without query and not percent-decoded; `query` is without the question
    mark. `headers` have lower-case names, in the order sent.
    """

    __slots__ = (
        "_callbacks", "_id", "body", "disconnected", "headers", "http11", "keep_alive", "method",
        "path", "peer", "query",
    )  # fmt: skip

    def __init__(
        self,
        method: str,
        path: str,
        query: str,
        headers: list[HeaderPair],
        *,
        http11: bool = True,
        keep_alive: bool = True,
        body: bytes = b"",
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.body = body
        self.http11 = http11
        self.keep_alive = keep_alive
        self.peer: str | None = None
        self.disconnected = False
        self._id: str | None = None
        self._callbacks: list[Callable[[], None]] | None = None

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header (lower-case name), or None."""
        return find_header(self.headers, name)

    @property
    def id(self) -> str:
        """The client's X-Request-ID where it is a plain token, else a random one."""
        if self._id is None:
            given = self.header(b"x-request-id")
            plain = given is not None and _CLIENT_ID.match(given)
            self._id = given.decode() if given and plain else secrets.token_hex(16)
        return self._id

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Call back once if the client goes away before the response is finished.

        The handler's task is cancelled in any case; this is for what runs outside of it.
        """
        if self.disconnected:
            callback()
            return
        if self._callbacks is None:
            self._callbacks = []
        self._callbacks.append(callback)

    def mark_disconnected(self) -> None:
        """For the connection: the client is gone."""
        self.disconnected = True
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback()
