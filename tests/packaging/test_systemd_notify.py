"""What systemd hears of the real processes, under what the units forbid them."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.support.systemd_units import Example, Unit

from contraflow.store.etcd_binary import find_etcd

pytestmark = pytest.mark.integration

DEADLINE = 30.0
CONFIGS = {
    "directory": 'listen = "127.0.0.1:0"\nstore = "memory"\n',
    "agent": (
        'listen = "127.0.0.1:0"\nadvertise_address = "127.0.0.1:1"\n'
        'link_socket = "unix:{folder}/run/engines.sock"\ndirectory = ["127.0.0.1:1"]\n'
    ),
    "router": (
        'listen = "127.0.0.1:0"\ngrpc_listen = "127.0.0.1:0"\ndirectory = ["127.0.0.1:1"]\n'
        'cluster_secret = "a secret of the tests"\n'
    ),
}


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(DEADLINE)
        yield listener


def start(
    command: list[str], systemd: socket.socket, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    libc = ctypes.CDLL(None)

    def forbid_writable_code() -> None:
        libc.prctl(65, 1, 0, 0, 0)  # PR_SET_MDWE: MemoryDenyWriteExecute; Linux 6.3

    notify = {"NOTIFY_SOCKET": systemd.getsockname()}
    return subprocess.Popen(command, env={**environment, **notify}, preexec_fn=forbid_writable_code)


def hear(systemd: socket.socket, wanted: bytes) -> list[bytes]:
    """The lines of the first message that has ``wanted``."""
    while True:
        lines = systemd.recv(4096).split(b"\n")
        if wanted in lines:
            return lines


@pytest.mark.parametrize("service", CONFIGS)
def test_a_service_tells_of_its_start_its_life_and_its_end(
    service: str, systemd: socket.socket, tmp_path: Path
) -> None:
    config = tmp_path / "it.toml"
    config.write_text(CONFIGS[service].format(folder=tmp_path))
    command = [sys.executable, "-m", "contraflow.cli.main", service, "--config", str(config)]
    process = start(command, systemd, {**os.environ, "WATCHDOG_USEC": "200000"})
    try:
        status = hear(systemd, b"READY=1")[1]
        assert status.startswith(b"STATUS=serving on 127.0.0.1:")
        hear(systemd, b"WATCHDOG=1")
        process.send_signal(signal.SIGTERM)
        hear(systemd, b"STOPPING=1")
        assert process.wait(DEADLINE) == 0
    finally:
        process.kill()
        process.wait()


def test_etcd_tells_of_its_start_when_run_from_its_file(
    systemd: socket.socket, tmp_path: Path
) -> None:
    client, peer = free_port(), free_port()
    here = {
        "ETCD_DATA_DIR": str(tmp_path / "data"),
        "ETCD_LISTEN_CLIENT_URLS": f"http://127.0.0.1:{client}",
        "ETCD_ADVERTISE_CLIENT_URLS": f"http://127.0.0.1:{client}",
        "ETCD_LISTEN_PEER_URLS": f"http://127.0.0.1:{peer}",
        "ETCD_INITIAL_ADVERTISE_PEER_URLS": f"http://127.0.0.1:{peer}",
        "ETCD_INITIAL_CLUSTER": f"etcd-1=http://127.0.0.1:{peer}",
        "ETCD_LOG_LEVEL": "error",
    }
    [path] = Unit("contraflow-etcd").example_files()
    process = start([str(find_etcd().path)], systemd, {**Example.read(path).active, **here})
    try:
        hear(systemd, b"READY=1")
        process.terminate()
        assert process.wait(DEADLINE) in (0, -signal.SIGTERM)
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
