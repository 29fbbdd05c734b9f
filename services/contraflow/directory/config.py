"""Configuration of the directory."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from contraflow.runtime.address import Address
from contraflow.runtime.config import Config, Seconds
from contraflow.runtime.logging import LogLevel

_ETCD_OPERATIONS = 128  # in one transaction, by etcd's default --max-txn-ops
_AGENTS_BATCH = 100  # what agents send in one call: fewer, and nothing would be published


class EtcdConfig(Config, frozen=True):
    """The cluster that keeps the records."""

    endpoints: Annotated[tuple[Address, ...], msgspec.Meta(min_length=1)] = (
        Address("127.0.0.1", 2379),
    )
    timeout_seconds: Seconds = 1.0

    def __post_init__(self) -> None:
        if any(endpoint.unix_path for endpoint in self.endpoints):
            raise ValueError("endpoints must be 'host:port'")


class LivenessConfig(Config, frozen=True):
    """Bounds of the TTL of a registration."""

    default_ttl_seconds: Seconds = 10.0
    min_ttl_seconds: Seconds = 1.0
    max_ttl_seconds: Seconds = 300.0

    def __post_init__(self) -> None:
        if not self.min_ttl_seconds <= self.default_ttl_seconds <= self.max_ttl_seconds:
            raise ValueError("min_ttl_seconds <= default_ttl_seconds <= max_ttl_seconds must hold")


class LimitsConfig(Config, frozen=True):
    """What one caller may ask for, and what is kept for watchers."""

    max_message_bytes: Annotated[int, msgspec.Meta(ge=64 * 1024)] = 4 * 1024 * 1024
    max_batch_items: Annotated[int, msgspec.Meta(ge=_AGENTS_BATCH, le=_ETCD_OPERATIONS)] = (
        _ETCD_OPERATIONS
    )
    max_page_size: Annotated[int, msgspec.Meta(ge=1)] = 1000
    watch_history: Annotated[int, msgspec.Meta(ge=1)] = 20_000
    """Changes kept for watches that resume or lag; a watch that needs more starts over."""


class DirectoryConfig(Config, frozen=True):
    """The file that ``contraflow directory --config`` reads."""

    listen: Address = Address("127.0.0.1", 7400)
    metrics_listen: Address | None = None
    log_level: LogLevel = "info"
    store: Literal["etcd", "memory"] = "etcd"
    prefix: Annotated[str, msgspec.Meta(pattern="^[a-z0-9/_-]+$")] = "contraflow"
    progress_seconds: Seconds = 5.0
    etcd: EtcdConfig = EtcdConfig()
    liveness: LivenessConfig = LivenessConfig()
    limits: LimitsConfig = LimitsConfig()
