"""How clients inside a cluster dial: one place for what all of their channels have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import grpc

Option = tuple[str, int]
OpenChannel = Callable[[str, Sequence[Option]], grpc.aio.Channel]
"""Dials a gRPC target with channel options; parts take one, so that they can be joined
without sockets."""

_COMMON: tuple[Option, ...] = (
    # A node that comes back shall be asked again at once, not after minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A proxy from the environment has no business between parts of one cluster.
    ("grpc.enable_http_proxy", 0),
)


def open_channel(target: str, options: Sequence[Option]) -> grpc.aio.Channel:
    """A plaintext channel, made inside a running event loop."""
    return grpc.aio.insecure_channel(target, options=(*_COMMON, *options))
