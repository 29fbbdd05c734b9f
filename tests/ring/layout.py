"""Who runs where, and how each part is started."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from contraflow.cli.deployment.engine_command import EngineHandle, sim_process
from contraflow.cli.deployment.etcd import ETCD_TIER
from contraflow.cli.deployment.process import ProcessSpec
from contraflow.cli.deployment.services import (
    AGENT_TIER,
    DIRECTORY_TIER,
    ROUTER_TIER,
    service_process,
)
from contraflow.cli.deployment.spec import DeploymentSpec, EngineKind
from contraflow.core.fleet import Role
from contraflow.store.etcd_binary import find_etcd
from tests.ring.network import Network

ETCDS = ("etcd-1", "etcd-2", "etcd-3")
DIRECTORIES = ("directory-1", "directory-2")
ROUTERS = ("router-1", "router-2")
NODES = ("node-1", "node-2")
AGENTS = ("agent-1", "agent-2")
PREFILLS = ("prefill-1", "prefill-2")
DECODES = ("decode-1", "decode-2")
ENGINES = (*PREFILLS, *DECODES)
CLIENT = "client"
HOSTS = (*ETCDS, *DIRECTORIES, *ROUTERS, *NODES, CLIENT)
PARTS = (*ETCDS, *DIRECTORIES, *AGENTS, *ROUTERS, *ENGINES)

LIVENESS_TTL = 4.0
START_BY, MAX_READ = 4.0, 2.0
QUOTA_BYTES = 16 * 2**20
PREFIX = "contraflow"
SECRET = "0123456789abcdef"
_PORTS = {"directory": 7400, "agent": 7410, "router": 7420, "prefill": 8101, "decode": 8102}
_HTTP_PORT, _CLIENT_PORT, _PEER_PORT = 8000, 2379, 2380
SPEC = DeploymentSpec(
    engine=EngineKind.SIM,
    sim_profile="cpu-demo",
    blocks=1500,
    block_size=16,
    max_model_len=2048,
    retention_ttl=24.0,
    kv_lease=6.0,
)


class Layout:
    """One fleet on a network. Its files, and the sockets of its agents, go to ``folder``."""

    def __init__(self, network: Network, folder: Path) -> None:
        self._network = network
        self._folder = folder

    @staticmethod
    def host(part: str) -> str:
        """Where a part runs: engines and agents on the node of their number."""
        own = part in (*ETCDS, *DIRECTORIES, *ROUTERS)
        return part if own else f"node-{part[-1]}"

    def grpc(self, part: str) -> str:
        """Where a directory, agent or router serves gRPC."""
        return f"{self._network.address(part)}:{_PORTS[part[:-2]]}"

    def http(self, part: str) -> str:
        """The base URL of an etcd, an engine or a router."""
        ports = {"etcd": _CLIENT_PORT, "router": _HTTP_PORT}
        port = ports.get(part[:-2]) or _PORTS[part[:-2]]
        return f"http://{self._network.address(self.host(part))}:{port}"

    def process(self, part: str) -> ProcessSpec:
        """How a part is started, on its host."""
        kind = part[:-2]
        if part in ETCDS:
            spec = self._etcd(part)
        elif part in ENGINES:
            spec = self._engine(part)
        else:
            config, tier = {
                "directory": (self._directory, DIRECTORY_TIER),
                "agent": (self._agent, AGENT_TIER),
                "router": (self._router, ROUTER_TIER),
            }[kind]
            spec = service_process(self._folder, part, kind, config(part), tier)
        return replace(spec, command=self._network.command(self.host(part), spec.command))

    def _etcd(self, part: str) -> ProcessSpec:
        return ProcessSpec(part, [str(find_etcd().path), *self._etcd_flags(part)], tier=ETCD_TIER)

    def _etcd_flags(self, part: str) -> Iterator[str]:
        peers = {one: f"http://{self._network.address(one)}:{_PEER_PORT}" for one in ETCDS}
        yield from ("--name", part, "--data-dir", str(self._folder / part))
        yield from ("--listen-client-urls", self.http(part))
        yield from ("--advertise-client-urls", self.http(part))
        yield from ("--listen-peer-urls", peers[part])
        yield from ("--initial-advertise-peer-urls", peers[part])
        yield from ("--initial-cluster", ",".join(f"{one}={peers[one]}" for one in ETCDS))
        yield from ("--quota-backend-bytes", str(QUOTA_BYTES), "--log-level", "warn")
        yield "--unsafe-no-fsync"  # of the machine, which does not crash here

    def _directory(self, part: str) -> dict[str, Any]:
        return {
            "listen": self.grpc(part),
            "prefix": PREFIX,
            "etcd": {"endpoints": [self.http(one).removeprefix("http://") for one in ETCDS]},
        }

    def _agent(self, part: str) -> dict[str, Any]:
        return {
            "listen": self.grpc(part),
            "link_socket": self._link(part),
            "directory": self._directories(part),
            "liveness_ttl_seconds": LIVENESS_TTL,
            "claim": {
                "start_by_seconds": START_BY,
                "max_read_seconds": MAX_READ,
                "acquire_timeout_seconds": SPEC.acquire_deadline,
            },
            "retention": {"ttl_seconds": SPEC.retention_ttl, "max_idle_seconds": 60.0},
        }

    def _router(self, part: str) -> dict[str, Any]:
        return {
            "listen": self.http(part).removeprefix("http://"),
            "grpc_listen": self.grpc(part),
            "directory": self._directories(part),
            "cluster_secret": SECRET,
            "claim_start_by_seconds": START_BY,
            "acquire_deadline_seconds": 0.5,
            "engines": {"connect_timeout": 2.0},
        }

    def _engine(self, part: str) -> ProcessSpec:
        role = Role(part[:-2])
        number = 1 if role is Role.PREFILL else 2
        engine = EngineHandle(part, role, self.http(part), side_port=5600 + number, core=0)
        return sim_process(SPEC, engine, self._link(f"agent-{part[-1]}"))

    def _directories(self, part: str) -> list[str]:
        # Each half of the fleet begins with another one.
        return [self.grpc(one) for one in DIRECTORIES][:: 1 if part.endswith("1") else -1]

    def _link(self, agent: str) -> str:
        return f"unix:{self._folder / agent / 'link'}"
