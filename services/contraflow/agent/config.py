"""The agent's configuration file."""

from __future__ import annotations

from typing import Annotated

import msgspec

from contraflow.core.retention import Policy
from contraflow.runtime.address import Address
from contraflow.runtime.config import MOST_SECONDS, Config, Seconds
from contraflow.runtime.logging import LogLevel


class ClaimConfig(Config, frozen=True):
    """Claims on handles."""

    start_by_seconds: Seconds = 60.0
    """Time within which a read must have started, where the router names none."""
    max_read_seconds: Seconds = 10.0
    """Time that a read may take after that."""
    acquire_timeout_seconds: Seconds = 0.05
    """Time that an engine has to answer an acquire, where the router sets no deadline."""
    order_timeout_seconds: Seconds = 1.0
    """Likewise for a return or a release."""


class RetentionConfig(Config, frozen=True):
    """What engines keep of conversations that nobody continues yet."""

    budget_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    """Most blocks of an engine that handles may hold, as a share of all."""
    ttl_seconds: Annotated[float, msgspec.Meta(ge=1, le=MOST_SECONDS)] = 480.0
    """Lease that a renewal gives. About half of it is left at worst: where that is less than a
    claim takes, claims made then are denied as LEASE_TOO_SHORT."""
    max_idle_seconds: Annotated[float, msgspec.Meta(ge=0, le=MOST_SECONDS)] = 1800.0
    """Age from which a handle is renewed no more; 0: none is ever renewed."""

    @property
    def policy(self) -> Policy:
        """As the core knows it."""
        return Policy(self.budget_share, self.ttl_seconds, self.max_idle_seconds)


class AgentConfig(Config, frozen=True):
    """All keys of the agent."""

    listen: Address
    """Where AgentService is served: ``host:port`` or ``[v6]:port``."""
    link_socket: Address
    """``unix:/path`` of EngineLinkService. The folder must be the agent's own, mode 0700."""
    directory: Annotated[list[Address], msgspec.Meta(min_length=1)]
    """gRPC targets of the directory's replicas."""
    advertise_address: Address | None = None
    """What routers dial to reach ``listen``, as the directory tells them; ``listen`` if unset."""
    claim: ClaimConfig = ClaimConfig()
    """Table ``[claim]``."""
    retention: RetentionConfig = RetentionConfig()
    """Table ``[retention]``."""
    liveness_ttl_seconds: Seconds = 10.0
    """Liveness of an engine in the directory, renewed every third of it while attached."""
    metrics_listen: Address | None = None
    """Where ``/metrics`` is served; nowhere if unset."""
    log_level: LogLevel = "info"
    """Least severe events that are logged."""

    def __post_init__(self) -> None:
        if self.listen.unix_path or (self.advertise_address and self.advertise_address.unix_path):
            raise ValueError("listen and advertise_address must be 'host:port'")
        if not self.link_socket.unix_path:
            raise ValueError("link_socket must be 'unix:/path'")
        if self.advertise_address is None and self.listen.host in ("0.0.0.0", "::"):
            raise ValueError("advertise_address is needed where listen is a wildcard")
        if not (self.advertise_address or self.listen).port:
            raise ValueError("advertise_address needs a port, for listen has none")

    @property
    def advertised(self) -> str:
        """The gRPC target of this agent."""
        return str(self.advertise_address or self.listen)
