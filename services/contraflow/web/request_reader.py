"""Bytes of a client connection into requests, refusing what could be read in two ways.

llhttp (httptools 0.9) already refuses Content-Length together with Transfer-Encoding, repeated or
malformed lengths, folded headers, bare CR or LF and malformed chunks. What it lets pass and this
module refuses: transfer codings before `chunked`, any of them in HTTP/1.0, HTTP versions other
than 1.0 and 1.1, a missing or repeated Host, RTSP and other foreign methods.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

import httptools

from contraflow.web.errors import ApiError
from contraflow.web.headers import HeaderPair
from contraflow.web.limits import ServerLimits
from contraflow.web.request import Request

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"})
_VERSIONS = ("1.1", "1.0")


class ReadState(Enum):
    """How far the request being read has come."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"


class RequestReader:
    """Collects complete requests in `ready`; `feed` raises ApiError once no more can follow."""

    __slots__ = (
        "_gap",
        "_head_bytes",
        "_headers",
        "_limits",
        "_muted",
        "_parser",
        "_parts",
        "_refusal",
        "_request",
        "_upgrading",
        "_url",
        "ready",
        "received",
        "state",
        "wants_continue",
    )

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self.ready: deque[Request] = deque()
        self.state = ReadState.IDLE
        self.received = 0
        self.wants_continue = False
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._refusal: ApiError | None = None
        self._muted = False
        self._upgrading = False
        self._gap = 0
        self._clear()

    def _clear(self) -> None:
        self._url: list[bytes] = []
        self._headers: list[HeaderPair] = []
        self._parts: list[bytes] = []
        self._head_bytes = 0
        self._request: Request | None = None
        self.received = 0

    def feed(self, data: bytes) -> None:
        """Parse on. Requests completed before an error are in `ready`.

        Raises ApiError (4xx or 5xx): the connection cannot be used for another request.
        """
        if self._parser is None:
            raise RuntimeError("the reader is closed")
        self._gap += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._read_on_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            raise self._refusal or ApiError(400, f"Malformed HTTP request: {error}") from None
        if self._gap > self._limits.max_header_bytes and self.state is not ReadState.IDLE:
            raise self._too_long()

    def close(self) -> None:
        """Break the cycle between this object and its parser."""
        self._parser = None

    def _read_on_without_upgrade(self, rest: bytes) -> None:
        # An upgrade that is not taken up is an ordinary request (Java's and curl's HTTP/2 clients
        # ask for h2c with any POST), but llhttp stops before its body. A fresh parser in the same
        # state reads it.
        length = self._length()
        chunked = b"Transfer-Encoding: chunked"
        framing = chunked if length is None else b"Content-Length: %d" % length
        self._parser = httptools.HttpRequestParser(self)
        self._upgrading = False
        self._muted = True
        self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
        self._muted = False
        self._gap = 0
        if rest:
            self.feed(rest)

    def _too_long(self) -> ApiError:
        limit = self._limits.max_header_bytes
        return ApiError(431, f"The request's headers are longer than {limit} bytes.")

    def _refuse(self, error: ApiError) -> ApiError:
        self._refusal = error
        return error

    # Callbacks of httptools.

    def on_message_begin(self) -> None:
        if not self._muted:
            self.state = ReadState.HEAD

    def on_url(self, url: bytes) -> None:
        if not self._muted:
            self._url.append(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._muted:
            return
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self._limits.max_header_bytes:
            raise self._refuse(self._too_long())
        if self.state is ReadState.BODY:
            return  # a trailer: nothing here needs one
        if len(self._headers) >= self._limits.max_headers:
            most = self._limits.max_headers
            raise self._refuse(ApiError(431, f"The request has more than {most} headers."))
        self._headers.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        if self._muted or self._parser is None:
            return
        parser = self._parser
        method = parser.get_method().decode()
        version = parser.get_http_version()
        if version not in _VERSIONS:
            raise self._refuse(ApiError(505, "Only HTTP/1.1 and HTTP/1.0 are spoken here."))
        if method not in _METHODS:
            raise self._refuse(ApiError(501, f"The method {method} is not supported."))
        path, query = self._target()
        self._check_headers(version)
        self._upgrading = parser.should_upgrade()
        self._request = Request(
            method, path, query, self._headers,
            http11=version == "1.1", keep_alive=parser.should_keep_alive(),
        )  # fmt: skip
        self._head_bytes = 0
        self._gap = 0
        self.state = ReadState.BODY

    def on_body(self, data: bytes) -> None:
        self._gap = 0
        self.received += len(data)
        if self.received > self._limits.max_body_bytes:
            raise self._refuse(self._too_large())
        self._parts.append(data)

    def on_message_complete(self) -> None:
        request = self._request
        if self._upgrading or request is None:
            return
        parts = self._parts
        request.body = parts[0] if len(parts) == 1 else b"".join(parts)
        self.ready.append(request)
        self.state = ReadState.IDLE
        self.wants_continue = False
        self._gap = 0
        self._clear()

    # Checks beyond llhttp's.

    def _target(self) -> tuple[str, str]:
        target = b"".join(self._url).decode("ascii", "replace")
        if target[:1] not in ("/", "*"):
            scheme, found, rest = target.partition("://")
            if not found or scheme.lower() not in ("http", "https"):
                raise self._refuse(ApiError(400, "The request target is not a path."))
            slash = rest.find("/")
            target = rest[slash:] if slash >= 0 else "/"
        path, _, query = target.partition("#")[0].partition("?")
        return path, query

    def _check_headers(self, version: str) -> None:
        hosts = 0
        for name, value in self._headers:
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                if int(value) > self._limits.max_body_bytes:
                    raise self._refuse(self._too_large())
            elif name == b"transfer-encoding":
                if value.lower() != b"chunked" or version != "1.1":
                    raise self._refuse(ApiError(501, "The transfer coding is not supported."))
            elif name == b"expect":
                if value.lower() != b"100-continue":
                    raise self._refuse(ApiError(417, "The expectation is not supported."))
                self.wants_continue = version == "1.1"
        if hosts > 1 or (hosts == 0 and version == "1.1"):
            raise self._refuse(ApiError(400, "The request needs exactly one Host header."))

    def _length(self) -> int | None:
        for name, value in self._headers:
            if name == b"content-length":
                return int(value)
            if name == b"transfer-encoding":
                return None
        return 0

    def _too_large(self) -> ApiError:
        limit = self._limits.max_body_bytes
        return ApiError(413, f"The request body is larger than {limit} bytes.")
