"""What a deployment consists of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

MODEL_NAME = "contraflow-demo"
"""Name under which every engine serves the model."""


class EngineKind(StrEnum):
    """What serves as an engine: vLLM on CPU cores, or the sim engine."""

    VLLM = "vllm"
    SIM = "sim"


@dataclass(frozen=True, kw_only=True)
class DeploymentSpec:
    """A whole deployment on this machine. The defaults are the smallest complete one.

    Durations are seconds. A ``model_dir`` of None means the demo's model, made if missing.
    ``connector`` and ``connector_module`` name the class that the prefill and decode engines
    load, ``engine_env`` goes into their environment (``PYTHONPATH``, for a connector that a
    test brings along). ``engine_args`` are further arguments of every engine. The model, the
    engine's Python, the connector and the dtype are vLLM's only.
    """

    engine: EngineKind = EngineKind.VLLM
    model_dir: Path | None = None
    model_size: str = "tiny"
    """Of the model that is made; ``large`` for one on which prefill costs seconds."""
    engine_python: Path | None = None
    run_dir: Path | None = None
    prefills: int = 1
    decodes: int = 1
    routers: int = 1
    router_port: int | None = None
    """Port of the first router; random if None."""
    with_reference: bool = False
    """Also a plain engine without any connector."""
    with_services: bool = True
    """False: engines only, and their connectors have no agent."""

    connector: str = "ContraflowConnector"
    connector_module: str | None = "contraflow_connector.connector"
    engine_env: Mapping[str, str] = field(default_factory=dict)
    engine_args: tuple[str, ...] = ()
    tensor_parallel: int = 1
    """Ranks of each prefill and decode engine of vLLM; the reference has one."""
    sim_profile: str = "instant"
    """Cost profile of sim engines."""
    blocks: int = 512
    block_size: int = 32
    max_model_len: int = 4096
    dtype: str = "float32"
    retention_ttl: float = 480.0
    """How long a decode engine keeps the blocks of a finished turn, unless it is renewed."""
    kv_lease: float | None = None
    """How long a prefill engine keeps what decode has not read; the engine's default if None."""
    retention_budget: float = 0.5
    """Share of a decode engine's blocks that finished turns may hold."""
    retention_max_idle: float = 1800.0
    """Age from which a finished turn's blocks are renewed no more."""

    claim_start_by: float = 60.0
    """Time that a claim leaves until the read must have started."""
    claim_max_read: float = 10.0
    """Time that the read may take after that."""
    acquire_deadline: float = 2.0
    """Longest wait of a router for a claim: long, since everything shares a few cores."""
    recompute_threshold_tokens: int = 64
    decisions: tuple[str, ...] = ()
    """``decision`` of the first routers, in their order; the others keep the default."""
    dialled: Mapping[str, str] = field(default_factory=dict)
    """What others dial to reach ``etcd``, ``directory``, ``agent`` or ``engines`` (the agent's
    socket), where a test stands in between. By default what it listens on."""
    api_keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Keys by tenant. Empty: nobody has to authenticate."""
    log_level: str = "info"

    start_deadline: float = 300.0
    """Longest wait for any one process to become ready."""
    stop_grace: float = 15.0
    """Time between SIGTERM and SIGKILL."""
