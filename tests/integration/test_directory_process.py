"""The directory as a process: what every Contraflow server offers, and how it ends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2
from tests.support.running_directory import until_healthy

import contraflow
from contraflow.runtime.address import Address
from contraflow.v1 import server_info_service_pb2 as info_pb2
from contraflow.v1 import server_info_service_pb2_grpc as info_pb2_grpc

pytestmark = pytest.mark.integration

PROGRAM = (
    "import sys; from pathlib import Path; from contraflow.directory.main import run;"
    "sys.exit(run(Path(sys.argv[1])))"
)


def start(path: Path, text: str) -> subprocess.Popen[str]:
    path.write_text(text)
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path)], stderr=subprocess.PIPE, text=True
    )


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    text = 'listen = "127.0.0.1:0"\nmetrics_listen = "127.0.0.1:0"\nstore = "memory"\n'
    process = start(tmp_path / "directory.toml", text)
    yield process
    process.kill()
    process.wait()


def address_of(process: subprocess.Popen[str], event: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        entry = json.loads(line)
        if entry["event"] == event:
            return str(entry["address"])
    raise AssertionError(f"no event {event!r}")


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection(process: subprocess.Popen[str], version: str) -> None:
    request = reflection_pb2.ServerReflectionRequest
    async with grpc.aio.insecure_channel(address_of(process, "serving")) as channel:
        call = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=request.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        symbol = "contraflow.v1.DirectoryService"
        symbols = [symbol, f"{symbol}.ListEngines", f"{symbol}.NoSuch", "no.such.Symbol"]
        asked = [request(file_containing_symbol=one) for one in symbols]
        answers = call(iter([request(list_services=""), *asked]))
        listed, *described = [answer async for answer in answers]
    names = {service.name for service in listed.list_services_response.service}
    assert {symbol, "contraflow.v1.ServerInfoService", "grpc.health.v1.Health"} <= names
    for found in described[:2]:
        assert found.file_descriptor_response.file_descriptor_proto
    for missed in described[2:]:
        assert missed.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


async def test_health_and_server_info(process: subprocess.Popen[str]) -> None:
    address = address_of(process, "serving")
    await until_healthy(Address.parse(address), "contraflow.v1.DirectoryService")
    async with grpc.aio.insecure_channel(address) as channel:
        stub = info_pb2_grpc.ServerInfoServiceStub(channel)
        info = await stub.GetServerInfo(info_pb2.GetServerInfoRequest())
    assert (info.component, info.version) == ("directory", contraflow.__version__)
    assert list(info.features) == ["store:memory"]
    assert info.limits.max_batch_items == 128
    assert info.limits.max_page_size == 1000
    assert info.limits.max_message_bytes == 4 * 1024 * 1024


def test_metrics(process: subprocess.Popen[str]) -> None:
    address = address_of(process, "metrics")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{address}/metrics") as response:
        text = response.read().decode()
    assert "contraflow_directory_engines 0.0" in text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_well(process: subprocess.Popen[str], number: signal.Signals) -> None:
    address_of(process, "serving")
    process.send_signal(number)
    assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("lissten = 1", "unknown key 'lissten'"),
        ("[etcd]\nendpoint = 1", "unknown key 'etcd.endpoint'"),
        ('listen = "nowhere"', "listen: 'nowhere' is not 'host:port'"),
        ('store = "redis"', "store: invalid enum value 'redis'"),
        ("= 1", "line 1"),
    ],
)
def test_bad_configuration_is_one_line_and_exit_2(tmp_path: Path, text: str, problem: str) -> None:
    process = start(tmp_path / "directory.toml", text)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    [line] = errors.splitlines()
    assert line.startswith("contraflow: ")
    assert "directory.toml" in line
    assert problem in line


@pytest.mark.parametrize("key", ["listen", "metrics_listen"])
def test_a_port_in_use_is_named(tmp_path: Path, key: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        settings = {"store": "memory", "listen": "127.0.0.1:0"} | {key: address}
        text = "\n".join(f'{name} = "{value}"' for name, value in settings.items())
        process = start(tmp_path / "directory.toml", text)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    assert errors == f"contraflow: {address} is in use by another process\n"


def test_a_unix_socket_in_use_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s"
    text = f'store = "memory"\nlisten = "unix:{path}"\n'
    first = start(tmp_path / "first.toml", text)
    address_of(first, "serving")
    second = start(tmp_path / "second.toml", text)
    _, errors = second.communicate(timeout=30)
    assert second.returncode == 2
    assert errors == f"contraflow: unix:{path} is in use by another process\n"
    first.kill()
    first.wait()
    third = start(tmp_path / "third.toml", text)
    assert address_of(third, "serving") == f"unix:{path}"
    third.kill()
    third.wait()
