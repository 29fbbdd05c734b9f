"""The etcd of a deployment: one member, on loopback."""

from __future__ import annotations

from pathlib import Path

from contraflow.cli.deployment.addresses import Addresses
from contraflow.cli.deployment.process import ProcessSpec
from contraflow.store.etcd_binary import find_etcd

ETCD_TIER = 0


def etcd_process(addresses: Addresses, run_dir: Path) -> ProcessSpec:
    """The process of a fresh, empty etcd. Raises ConfigError if there is no binary."""
    binary = find_etcd()
    command = [
        str(binary.path),
        "--name", "contraflow",
        "--data-dir", str(run_dir / "etcd-data"),
        "--listen-client-urls", addresses.etcd,
        "--advertise-client-urls", addresses.etcd,
        "--listen-peer-urls", addresses.etcd_peer,
        "--initial-advertise-peer-urls", addresses.etcd_peer,
        "--initial-cluster", f"contraflow={addresses.etcd_peer}",
        "--log-level", "warn",
        # What it holds is worth nothing once the engines are gone.
        "--unsafe-no-fsync",
    ]  # fmt: skip
    hint = f"this is {binary}; ETCD_BIN names another one"
    return ProcessSpec("etcd", command, tier=ETCD_TIER, hint=hint)
