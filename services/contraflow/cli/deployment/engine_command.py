"""How an engine is started: vLLM on a few CPU cores, or the sim engine."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from contraflow.cli.deployment.ports import LOOPBACK
from contraflow.cli.deployment.process import ProcessSpec
from contraflow.cli.deployment.spec import MODEL_NAME, DeploymentSpec
from contraflow.core.fleet import Role

ENGINE_TIER = 3
ENGINE_BYTES = 1_700_000_000
"""Memory that one engine takes, roughly."""
_VLLM_HINT = "see the log; `make setup` repairs the engine environment"


@dataclass(frozen=True)
class EngineHandle:
    """An engine of the deployment. ``role`` is None for the reference.

    ``endpoint`` is the base URL of its OpenAI server, ``side_port`` that of NIXL.
    """

    name: str
    role: Role | None
    endpoint: str
    side_port: int
    core: int

    @property
    def host(self) -> str:
        """Where it listens."""
        return urlsplit(self.endpoint).hostname or LOOPBACK


def cores_for(count: int, cores: Sequence[int] | None = None) -> list[int]:
    """A core for each engine, of those that this process may use; shared if too few."""
    usable = sorted(os.sched_getaffinity(0)) if cores is None else list(cores)
    return [usable[i % len(usable)] for i in range(count)]


def vllm_process(
    spec: DeploymentSpec,
    engine: EngineHandle,
    agent: str,
    *,
    python: Path,
    model: Path,
    scratch: Path,
) -> ProcessSpec:
    """A vLLM engine. ``agent`` is the gRPC target of its agent, or empty; sockets and other
    temporary files go to ``scratch``."""
    command = [
        str(python), "-m", "vllm.entrypoints.openai.api_server",
        "--model", str(model),
        "--dtype", spec.dtype,
        *_common_arguments(spec, engine, agent),
        "--enforce-eager",
        "--enable-auto-tool-choice",
        "--tool-call-parser", "hermes",
        "--disable-uvicorn-access-log",
        *spec.engine_args,
    ]  # fmt: skip
    env = {**_environment(engine), "TMPDIR": str(scratch)}
    if engine.role is not None:
        command += ["--tensor-parallel-size", str(spec.tensor_parallel)]
        if spec.tensor_parallel > 1:
            # A rank that waits for another yields in a loop. Bound to a core it is then starved
            # for most of a minute, as soon as NIXL's thread of another engine is busy there.
            env |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
        env |= spec.engine_env
    return ProcessSpec(engine.name, command, tier=ENGINE_TIER, env=env, hint=_VLLM_HINT)


def sim_process(spec: DeploymentSpec, engine: EngineHandle, agent: str) -> ProcessSpec:
    """A sim engine. ``agent`` as above."""
    command = [
        sys.executable, "-m", "contraflow.cli.main", "engine-sim",
        "--model", MODEL_NAME,
        *_common_arguments(spec, engine, agent),
        "--side-channel-host", engine.host,
        "--side-channel-port", str(engine.side_port),
        "--profile", spec.sim_profile,
        "--log-level", spec.log_level,
        *spec.engine_args,
    ]  # fmt: skip
    return ProcessSpec(engine.name, command, tier=ENGINE_TIER, hint="see the log")


def _common_arguments(spec: DeploymentSpec, engine: EngineHandle, agent: str) -> list[str]:
    arguments = [
        "--served-model-name", MODEL_NAME,
        "--host", engine.host,
        "--port", engine.endpoint.rpartition(":")[2],
        "--block-size", str(spec.block_size),
        "--num-gpu-blocks-override", str(spec.blocks),
        "--max-model-len", str(spec.max_model_len),
        "--max-num-seqs", "8",
    ]  # fmt: skip
    if engine.role is not None:
        config = kv_transfer_config(spec, engine, agent)
        arguments += ["--kv-transfer-config", json.dumps(config)]
    return arguments


def kv_transfer_config(spec: DeploymentSpec, engine: EngineHandle, agent: str) -> dict[str, Any]:
    """The JSON of ``--kv-transfer-config``."""
    prefill = engine.role is Role.PREFILL
    extra: dict[str, Any] = {
        "bidirectional_kv_xfer": True,
        "decoder_kv_blocks_ttl": spec.retention_ttl,
    }
    if spec.kv_lease is not None:
        extra["kv_lease_duration"] = spec.kv_lease
    if agent and engine.role is not None:
        extra["contraflow"] = {
            "agent": agent,
            "endpoint": engine.endpoint,
            "role": engine.role.value,
        }
    config: dict[str, Any] = {
        "kv_connector": spec.connector,
        "engine_id": engine.name,
        # Not kv_producer: a block that is being pulled could then be written meanwhile.
        "kv_role": "kv_both" if prefill else "kv_consumer",
        "kv_buffer_device": "cpu",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra,
    }
    if spec.connector_module:
        config["kv_connector_module_path"] = spec.connector_module
    return config


def _environment(engine: EngineHandle) -> dict[str, str]:
    return {
        "CONTRAFLOW_DEMO_CALM": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        "UCX_NET_DEVICES": "lo",
        "UCX_RCACHE_MAX_UNRELEASED": "1024",
        # With shared memory as well, UCX's thread was seen to spin for good after a long read.
        "UCX_TLS": "tcp",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": str(engine.core),
        "VLLM_HOST_IP": engine.host,
        "VLLM_NIXL_SIDE_CHANNEL_HOST": engine.host,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(engine.side_port),
        "VLLM_NO_USAGE_STATS": "1",
    }
