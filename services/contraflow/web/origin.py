"""Where an upstream listens."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from contraflow.web.errors import host_port


class Origin(NamedTuple):
    """Host and port of a plain HTTP upstream. The host is without brackets."""

    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> Origin:
        """Read `http://host[:port]`; IPv6 addresses in brackets, port 80 if none is given.

        ValueError for another scheme, a path, a query, credentials or a missing host.
        """
        parts = urlsplit(url)
        if parts.scheme != "http":
            raise ValueError(f"{url!r}: an upstream's URL starts with http://")
        extra = parts.path not in ("", "/") or parts.query or parts.fragment
        if extra or "@" in parts.netloc:
            raise ValueError(f"{url!r}: an upstream's URL is http://host:port and nothing else")
        host = parts.hostname
        if not host or any(c.isspace() for c in url) or "%" in host:
            raise ValueError(f"{url!r}: not a valid host")
        if ":" in host and not parts.netloc.startswith("["):
            raise ValueError(f"{url!r}: an IPv6 address needs brackets")
        port = 80 if parts.port is None else parts.port
        if port == 0:
            raise ValueError(f"{url!r}: port 0")
        return cls(host, port)

    @property
    def authority(self) -> str:
        """`host:port` for a Host header, an IPv6 address in brackets."""
        return host_port(self.host, self.port)

    def __str__(self) -> str:
        return f"http://{self.authority}"
