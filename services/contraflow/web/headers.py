"""Header lists: pairs of bytes, names in lower case."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

HeaderPair = tuple[bytes, bytes]
Headers = Sequence[HeaderPair]

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)
# A compressed answer could not be looked into for transfer parameters.
_NOT_FORWARDED = frozenset({b"host", b"content-length", b"expect", b"accept-encoding"})


def find_header(headers: Iterable[HeaderPair], name: bytes) -> bytes | None:
    """The first value of `name` (lower case), or None."""
    for key, value in headers:
        if key == name:
            return value
    return None


def end_to_end(headers: Headers) -> list[HeaderPair]:
    """Without hop-by-hop headers and those that `Connection` names (RFC 9110, 7.6.1)."""
    dropped = _HOP_BY_HOP
    for key, value in headers:
        if key == b"connection":
            dropped = dropped | {token.strip().lower() for token in value.split(b",")}
    return [pair for pair in headers if pair[0] not in dropped]


def forwardable(headers: Headers) -> list[HeaderPair]:
    """A client's headers for a new request upstream: end to end, without framing and encodings.

    Credentials are still in it; dropping or replacing those is the caller's decision.
    """
    return [pair for pair in end_to_end(headers) if pair[0] not in _NOT_FORWARDED]


def render(headers: Headers) -> bytes:
    """Header lines. ValueError if a name or value could end its line early."""
    lines = b"".join([b"%b: %b\r\n" % pair for pair in headers])
    if not lines.count(b"\n") == lines.count(b"\r") == len(headers) or b"\0" in lines:
        raise ValueError("line break or NUL in a header")
    return lines
