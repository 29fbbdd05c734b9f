"""Limits of the HTTP server and of the upstream client. Sizes are bytes, times are seconds."""

from __future__ import annotations

import msgspec

KIB = 1024
MIB = 1024 * KIB


class ServerLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one client connection may ask for."""

    max_connections: int = 8192
    max_header_bytes: int = 64 * KIB
    """Request line and headers together; also the most bytes that chunk extensions or trailers
    may take between two pieces of a body."""
    max_headers: int = 128
    max_body_bytes: int = 64 * MIB
    header_timeout: float = 10.0
    """From the first byte of a request (or the connect) to the end of its headers."""
    body_timeout: float = 30.0
    """The longest silence inside a body, and the time any body gets before its rate counts."""
    body_min_rate: float = 8 * KIB
    """Bytes per second that a body must reach on average after `body_timeout`."""
    idle_timeout: float = 75.0
    """Between two requests of a kept-alive connection."""
    write_timeout: float = 120.0
    """How long a client may refuse to take response bytes before it is cut off."""
    linger: float = 2.0
    """How long the rest of a refused request is read and thrown away, so that the client gets to
    see the answer instead of a reset."""
    max_pipelined_bytes: int = 64 * KIB
    """Bytes taken in behind a running request; reading pauses above it."""
    write_buffer_bytes: int = 64 * KIB
    """Response bytes waiting in user space above which `Responder.write` waits."""


class ClientLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the router talks to one upstream origin."""

    max_connections: int = 1024
    """Open connections per origin; further requests wait for `pool_timeout`."""
    max_idle: int = 256
    idle_timeout: float = 4.0
    """Must stay below the engine's keep-alive timeout (vLLM: 5 s), or a request may be written to
    a connection that the engine is closing, and nobody can prove that it was not read."""
    pool_timeout: float = 5.0
    connect_timeout: float = 5.0
    header_timeout: float = 600.0
    """From the written request to the response's headers: on a prefill leg the whole prefill."""
    max_header_bytes: int = 64 * KIB
    max_headers: int = 256
    read_buffer_bytes: int = 64 * KIB
    """Response bytes waiting for their reader above which reading from the engine pauses."""
