"""The agent as a process: it starts, takes engines, and ends without waiting for them."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from tests.support.fake_engine_link import FakeEngineLink, engine

from contraflow.v1 import agent_service_pb2 as pb
from contraflow.v1 import server_info_service_pb2 as info_pb
from contraflow.v1.agent_service_pb2_grpc import AgentServiceStub
from contraflow.v1.server_info_service_pb2_grpc import ServerInfoServiceStub

pytestmark = pytest.mark.integration

PROGRAM = (
    "import sys; from pathlib import Path; from contraflow.agent.main import run;"
    "sys.exit(run(Path(sys.argv[1])))"
)


@contextmanager
def agent_process(folder: Path, listen: str) -> Iterator[subprocess.Popen[str]]:
    config = folder / "agent.toml"
    config.write_text(
        f'listen = "{listen}"\nadvertise_address = "agent.test:7000"\n'
        f'link_socket = "unix:{folder}/links/l"\ndirectory = ["127.0.0.1:9"]\n'
    )
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(config)], stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if (entry := json.loads(line))["event"] == "serving":
            return str(entry["address"])
    raise AssertionError("the agent has not served")


async def test_it_serves_and_ends_on_a_signal_while_an_engine_is_attached(tmp_path: Path) -> None:
    with agent_process(tmp_path, "127.0.0.1:0") as process:
        address = address_of(process)
        link = FakeEngineLink(engine())
        async with (
            link.attached(f"unix:{tmp_path}/links/l"),
            grpc.aio.insecure_channel(address) as channel,
        ):
            engines = await AgentServiceStub(channel).ListAttachedEngines(
                pb.ListAttachedEnginesRequest()
            )
            assert engines.engines[0].engine.agent_address == "agent.test:7000"
            info = await ServerInfoServiceStub(channel).GetServerInfo(
                info_pb.GetServerInfoRequest()
            )
            assert (info.component, info.limits.max_batch_items) == ("agent", 1000)
            process.send_signal(signal.SIGTERM)
            await link.ended.get()
        assert process.wait(30) == 0


def test_a_port_in_use_is_named_and_nothing_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with agent_process(tmp_path, listen) as process:
            assert process.stderr is not None
            lines = process.stderr.read().splitlines()
            assert process.wait(30) == 2
    assert lines == [f"contraflow: {listen} is in use by another process"]


def test_a_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links").chmod(0o755)
    with agent_process(tmp_path, "127.0.0.1:0") as process:
        assert process.stderr is not None
        lines = process.stderr.read().splitlines()
        assert process.wait(30) == 2
    assert len(lines) == 1
    assert "0700" in lines[0]
