"""Who listens where."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from contraflow.cli.deployment.engine_command import EngineHandle, cores_for
from contraflow.cli.deployment.ports import LOOPBACK, PortAllocator
from contraflow.cli.deployment.spec import DeploymentSpec
from contraflow.core.fleet import Role


@dataclass(frozen=True)
class RouterHandle:
    """A router. ``http`` is the base URL of its front door, ``grpc`` a gRPC target."""

    name: str
    http: str
    grpc: str


@dataclass(frozen=True)
class Addresses:
    """Everything that listens. ``etcd`` is its client URL; others are gRPC targets.

    ``agent_socket`` is the target at which engines attach.
    """

    etcd: str
    etcd_peer: str
    directory: str
    agent: str
    agent_socket: str
    routers: tuple[RouterHandle, ...]
    engines: tuple[EngineHandle, ...]
    reference: EngineHandle | None


def choose_addresses(spec: DeploymentSpec, scratch: Path, ports: PortAllocator) -> Addresses:
    """Free ports for a deployment. Raises PortInUse for the one that was asked for."""
    front_doors = [
        ports.take_fixed(spec.router_port) if spec.router_port and not i else ports.take()
        for i in range(spec.routers)
    ]
    roles = [Role.PREFILL] * spec.prefills + [Role.DECODE] * spec.decodes
    cores = cores_for(len(roles) + 1)
    ranks = data_parallel_size(spec.engine_args)
    engines = [
        _engine(f"{role.value}-{number}", role, core, ports, ranks)
        for role, number, core in zip(
            roles, [*range(1, spec.prefills + 1), *range(1, spec.decodes + 1)], cores, strict=False
        )
    ]
    reference = _engine("reference", None, cores[-1], ports, ranks) if spec.with_reference else None

    def target() -> str:
        return f"{LOOPBACK}:{ports.take()}"

    return Addresses(
        etcd=f"http://{target()}",
        etcd_peer=f"http://{target()}",
        directory=target(),
        agent=target(),
        agent_socket=f"unix:{scratch / 'engines.sock'}",
        routers=tuple(
            RouterHandle(f"router-{i}", f"http://{LOOPBACK}:{port}", target())
            for i, port in enumerate(front_doors, 1)
        ),
        engines=tuple(engines),
        reference=reference,
    )


def data_parallel_size(engine_args: Sequence[str]) -> int:
    """Ranks of an engine that is started with these arguments of vLLM's."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--data-parallel-size", "-dp", dest="size", type=int, default=1)
    return int(parser.parse_known_args(engine_args)[0].size)


def _engine(
    name: str, role: Role | None, core: int, ports: PortAllocator, ranks: int
) -> EngineHandle:
    endpoint = f"http://{LOOPBACK}:{ports.take()}"
    # Each rank listens on a port of its own, from the engine's on.
    return EngineHandle(name, role, endpoint, side_port=ports.take(ranks), core=core)
