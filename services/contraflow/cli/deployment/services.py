"""The processes of the control plane: their configuration files and commands."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contraflow.cli.deployment import toml
from contraflow.cli.deployment.addresses import Addresses, RouterHandle
from contraflow.cli.deployment.process import ProcessSpec
from contraflow.cli.deployment.spec import DeploymentSpec

DIRECTORY_TIER = 1
AGENT_TIER = 2
ROUTER_TIER = 4


@dataclass(frozen=True)
class Services:
    """Writes configuration files into ``config_dir`` and says how to run what reads them."""

    spec: DeploymentSpec
    addresses: Addresses
    config_dir: Path
    cluster_secret: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)

    def directory(self) -> ProcessSpec:
        """The directory."""
        config = {
            "listen": self.addresses.directory,
            "etcd": {"endpoints": [self._dialled("etcd", self.addresses.etcd)]},
            "log_level": self.spec.log_level,
        }
        return self._service("directory", "directory", config, DIRECTORY_TIER)

    def agent(self) -> ProcessSpec:
        """The agent."""
        config = {
            "listen": self.addresses.agent,
            "advertise_address": self._dialled("agent", self.addresses.agent),
            "link_socket": self.addresses.agent_socket,
            "directory": [self._dialled("directory", self.addresses.directory)],
            "claim": {
                "start_by_seconds": self.spec.claim_start_by,
                "max_read_seconds": self.spec.claim_max_read,
                "acquire_timeout_seconds": self.spec.acquire_deadline,
            },
            "retention": {
                "budget_share": self.spec.retention_budget,
                "ttl_seconds": self.spec.retention_ttl,
                "max_idle_seconds": self.spec.retention_max_idle,
            },
            "log_level": self.spec.log_level,
        }
        return self._service("agent", "agent", config, AGENT_TIER)

    def router(self, router: RouterHandle) -> ProcessSpec:
        """A router."""
        config: dict[str, Any] = {
            "listen": router.http.removeprefix("http://"),
            "grpc_listen": router.grpc,
            "directory": [self._dialled("directory", self.addresses.directory)],
            "cluster_secret": self.cluster_secret,
            "recompute_threshold_tokens": self.spec.recompute_threshold_tokens,
            "acquire_deadline_seconds": self.spec.acquire_deadline,
            "claim_start_by_seconds": self.spec.claim_start_by,
            "cost_profile": "cpu-demo",
            "log_level": self.spec.log_level,
            "tenants": {name: {"api_keys": keys} for name, keys in self.spec.api_keys.items()},
        }
        decisions = dict(zip(self.addresses.routers, self.spec.decisions, strict=False))
        if router in decisions:
            config["decision"] = decisions[router]
        return self._service(router.name, "router", config, ROUTER_TIER)

    def _dialled(self, name: str, listens: str) -> str:
        return self.spec.dialled.get(name, listens).removeprefix("http://")

    def _service(
        self, name: str, command: str, config: Mapping[str, Any], tier: int
    ) -> ProcessSpec:
        return service_process(self.config_dir, name, command, config, tier)


def service_process(
    config_dir: Path, name: str, command: str, config: Mapping[str, Any], tier: int
) -> ProcessSpec:
    """A service, after its configuration has been written into ``config_dir``."""
    path = config_dir / f"{name}.toml"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(toml.dumps(config))
    return ProcessSpec(
        name,
        [sys.executable, "-m", "contraflow.cli.main", command, "--config", str(path)],
        tier=tier,
        hint=f"its configuration is {path}",
    )
