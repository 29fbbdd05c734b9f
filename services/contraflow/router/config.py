"""Configuration of a router."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from contraflow.core.cost import PROFILES
from contraflow.router.costs import Decides
from contraflow.runtime.address import Address
from contraflow.runtime.config import Config, ConfigError, Seconds
from contraflow.runtime.logging import LogLevel
from contraflow.web import ClientLimits, ServerLimits

MIN_SECRET_BYTES = 16


class TenantConfig(Config, frozen=True):
    """One tenant. A request with any of its keys is the tenant's."""

    api_keys: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]

    def __post_init__(self) -> None:
        for key in self.api_keys:
            if not (key and key.isascii() and key.isprintable() and " " not in key):
                raise ValueError("an API key must be printable ASCII without spaces")


class RouterConfig(Config, frozen=True):
    """The file of ``contraflow router``. Without tenants nobody has to authenticate."""

    listen: Address
    """OpenAI front door."""
    grpc_listen: Address
    """RouterService."""
    directory: Annotated[tuple[Address, ...], msgspec.Meta(min_length=1)]
    """Directory replicas; any one will do."""
    cluster_secret: str = ""
    """Equal in all routers of a cluster: session keys and cache salts derive from it."""
    cluster_secret_file: str = ""
    """In its place, a file; surrounding white space does not count."""
    engine_api_key: str = ""
    """Sent to the engines as bearer token, if they ask for one."""
    tenants: dict[str, TenantConfig] = msgspec.field(default_factory=dict)
    recompute_threshold_tokens: Annotated[int, msgspec.Meta(ge=1)] = 64
    """Neither claimed nor pulled below this many tokens."""
    decision: Decides = Decides.THRESHOLD
    """Who decides above them: nobody, or what was measured of these engines (``fitted``). In their
    place, to compare: ``always`` and ``never``."""
    decode_only_below_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Without a prefill leg goes a turn whose messages from the last reply on are fewer tokens, for
    certain: their bytes are counted, since a router has no tokenizer. Only to the engine that
    holds the rest. 0: no such turn."""
    acquire_deadline_seconds: Seconds = 0.05
    """Longest wait for an agent before the turn goes on as a recompute."""
    claim_start_by_seconds: Seconds = 60.0
    """Time that a claim gives the prefill engine to begin its read, queueing included."""
    decode_timeout_seconds: Seconds = 3600.0
    """From the decode request to the headers of its answer: for an answer that is not
    streamed, the whole generation."""
    drain_deadline_seconds: Seconds = 30.0
    """Time that running responses get after SIGTERM."""
    max_affinities: Annotated[int, msgspec.Meta(ge=1)] = 100_000
    """Sessions whose last decode engine is remembered before the directory has heard of it."""
    cost_profile: str = "p5en-h200-efa"
    """Machines and model that are thought to serve, as long as nothing is measured."""
    http: ServerLimits = ServerLimits()
    """Limits of the front door."""
    engines: ClientLimits = ClientLimits()
    """Limits and timeouts of the legs."""
    log_level: LogLevel = "info"

    def __post_init__(self) -> None:
        if bool(self.cluster_secret) == bool(self.cluster_secret_file):
            raise ValueError("set either cluster_secret or cluster_secret_file")
        if self.listen.unix_path:
            raise ValueError("listen must be host:port")
        if "" in self.tenants:
            raise ValueError("a tenant needs a name")
        if self.cost_profile not in PROFILES:
            raise ValueError(f"cost_profile must be one of {', '.join(PROFILES)}")
        keys = [key for tenant in self.tenants.values() for key in tenant.api_keys]
        if len(keys) != len(set(keys)):
            raise ValueError("an API key may be given once only")


def cluster_secret(config: RouterConfig) -> bytes:
    """The secret itself. Raises ConfigError if it can not be read or is too short."""
    secret = config.cluster_secret.encode()
    where = "cluster_secret"
    if config.cluster_secret_file:
        where = f"cluster_secret_file {config.cluster_secret_file}"
        try:
            secret = Path(config.cluster_secret_file).read_bytes().strip()
        except OSError as error:
            raise ConfigError(f"{where}: {error.strerror or error}") from error
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigError(f"{where}: fewer than {MIN_SECRET_BYTES} bytes")
    return secret
