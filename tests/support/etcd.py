"""A real etcd for tests: one per test module, thrown away afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contraflow.store.etcd_binary import EtcdProcess


@contextmanager
def running_etcd(folder: Path) -> Iterator[EtcdProcess]:
    """An etcd that serves, on a data directory in ``folder``."""
    process = EtcdProcess.start(folder / "etcd", fsync=False)
    try:
        yield process
    finally:
        process.kill()
