"""What a sim engine is told at its start."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from contraflow.core.fleet import Engine, Role
from contraflow.sim.profile import PROFILES, Profile

CONNECTOR_VERSIONS = {"0.32": 14, "0.33": 15}
"""Version of vLLM's NIXL connector protocol, by release."""
_KV_ROLES = ("kv_both", "kv_consumer", "kv_producer")
_MAX_ID = 400
"""Characters; each start adds some, and the directory takes 512."""


@dataclass(frozen=True, slots=True)
class SimOptions:
    """One engine: one data-parallel rank. Times in seconds.

    ``engine_id`` gets a suffix that is unique for each start. ``agent`` is the gRPC target of
    the node's agent, empty for none; ``endpoint`` the base URL for routers. The side channel
    listens on ``side_port + dp_rank``, or anywhere if ``side_port`` is 0. ``trimmable`` is
    False for layouts that hold no valid KV for a shorter prefix. ``reference`` is an engine
    without a connector.

    Raises ValueError for values that no engine can be started with.
    """

    engine_id: str = "sim"
    role: str = Role.PREFILL
    kv_role: str = "kv_both"
    agent: str = ""
    endpoint: str = ""
    side_host: str = "127.0.0.1"
    side_port: int = 0
    model: str = "sim"
    served_model_names: tuple[str, ...] = ("sim",)
    vllm_version: str = "0.33"
    block_size: int = 16
    num_blocks: int = 4096
    kv_dtype: str = "auto"
    tp_size: int = 1
    dp_rank: int = 0
    trimmable: bool = True
    bidirectional: bool = True
    retention_ttl: float = 480.0
    kv_lease: float = 30.0
    max_model_len: int = 32_768
    max_num_seqs: int = 64
    profile: str = "instant"
    reference: bool = False

    def __post_init__(self) -> None:
        if self.vllm_version not in CONNECTOR_VERSIONS:
            raise ValueError(f"vllm_version must be one of {_join(CONNECTOR_VERSIONS)}")
        if not 0 < len(self.engine_id) <= _MAX_ID or not self.engine_id.isprintable():
            raise ValueError(f"engine_id must be 1 to {_MAX_ID} printable characters")
        if "/" in self.engine_id:
            raise ValueError(
                f"engine_id is {self.engine_id!r}; it must not contain '/', which ends it in the "
                "ids of handles"
            )
        if self.kv_role not in _KV_ROLES:
            raise ValueError(f"kv_role is {self.kv_role!r}; it must be one of {_join(_KV_ROLES)}")
        if self.role not in set(Role):
            raise ValueError("role must be prefill or decode")
        if self.profile not in PROFILES:
            raise ValueError(f"profile must be one of {_join(PROFILES)}")
        if self.block_size < 1 or self.num_blocks < 2:
            raise ValueError("block_size must be at least 1 and num_blocks at least 2")
        if self.side_port + self.dp_rank > 65535:
            raise ValueError(
                f"the side channel of rank {self.dp_rank} would need port "
                f"{self.side_port + self.dp_rank}: choose a lower one"
            )
        if self.agent and not self.endpoint:
            raise ValueError("endpoint is needed with an agent")

    @property
    def costs(self) -> Profile:
        """The cost profile."""
        return PROFILES[self.profile]

    @property
    def connector_version(self) -> int:
        """Version of the NIXL connector protocol."""
        return CONNECTOR_VERSIONS[self.vllm_version]

    @property
    def compatibility_class(self) -> str:
        """16 hex digits; engines exchange blocks only within one class."""
        layout = [
            self.model,
            self.kv_dtype,
            self.block_size,
            self.tp_size,
            self.vllm_version,
            self.connector_version,
            self.trimmable,
        ]
        return hashlib.sha256(json.dumps(layout).encode()).hexdigest()[:16]

    @property
    def may_pull(self) -> bool:
        """Whether retained blocks may be pulled: as the connector has it for vLLM."""
        return self.bidirectional and self.kv_role != "kv_producer"

    def describe(self, engine_id: str, boot_nonce: str) -> Engine:
        """The incarnation as the directory shall know it."""
        return Engine(
            engine_id=engine_id,
            boot_nonce=boot_nonce,
            role=Role(self.role),
            endpoint=self.endpoint,
            dp_rank=self.dp_rank,
            served_models=self.served_model_names,
            model=self.model,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            kv_dtype=self.kv_dtype,
            tp_size=self.tp_size,
            vllm_version=self.vllm_version,
            connector_version=self.connector_version,
            bidirectional=self.bidirectional and (self.role == Role.DECODE or self.may_pull),
            trimmable=self.trimmable,
            compatibility_class=self.compatibility_class,
        )


def _join(names: Iterable[str]) -> str:
    return ", ".join(names)
