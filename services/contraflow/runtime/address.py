"""Addresses to listen on and to call: ``host:port``, ``[v6]:port`` and ``unix:/path``."""

from __future__ import annotations

from typing import Final

_UNIX = "unix:"
_MAX_UNIX_PATH = 107  # bytes; sun_path holds 108 with its terminating zero


class Address:
    """Either host and port, or the path of a unix socket. ``str()`` parses back, and is a
    gRPC target. A value: equal by content, not changed."""

    # Not a dataclass: msgspec would expect a table where configuration has text.
    __slots__ = ("host", "port", "unix_path")

    def __init__(self, host: str = "", port: int = 0, unix_path: str = "") -> None:
        self.host: Final = host
        self.port: Final = port
        self.unix_path: Final = unix_path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Address) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __repr__(self) -> str:
        return f"Address.parse({str(self)!r})"

    def __str__(self) -> str:
        if self.unix_path:
            return _UNIX + self.unix_path
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Raises ValueError with one sentence that names the text."""
        if text.startswith(_UNIX):
            return cls(unix_path=_unix_path(text.removeprefix(_UNIX), text))
        host, colon, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError(f"{text!r}: an IPv6 address needs brackets, as in '[::1]:7000'")
        if not (colon and host and port.isascii() and port.isdigit()) or int(port) > 65535:
            raise ValueError(f"{text!r} is not 'host:port', '[v6]:port' or 'unix:/path'")
        return cls(host=host, port=int(port))


def _unix_path(path: str, text: str) -> str:
    if path.startswith("//"):
        path = path[2:]
    if not path.startswith("/"):
        raise ValueError(f"{text!r}: the path of a unix socket must be absolute")
    if len(path.encode()) > _MAX_UNIX_PATH:
        raise ValueError(f"{text!r}: the path of a unix socket has at most {_MAX_UNIX_PATH} bytes")
    return path
