"""The router as it is started and stopped."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import grpc
import pytest
from tests.support.fake_engine import FakeEngine, Received
from tests.support.router_stub import chat, failure, kinds, read
from tests.support.wait import until

from contraflow.core.errors import Reason
from contraflow.core.fleet import Role
from contraflow.directory.config import DirectoryConfig
from contraflow.directory.main import serve as serve_directory
from contraflow.router.main import run
from contraflow.runtime.address import Address
from contraflow.runtime.clock import SystemClock
from contraflow.runtime.config import parse
from contraflow.runtime.directory_client import DirectoryClient
from contraflow.v1 import router_service_pb2 as pb
from contraflow.v1.router_service_pb2_grpc import RouterServiceStub

pytestmark = pytest.mark.integration

SECRET = "0123456789abcdef"


def config_text(directory: object, listen: str = "127.0.0.1:0", more: str = "") -> str:
    return f"""
listen = "{listen}"
grpc_listen = "127.0.0.1:0"
directory = ["{directory}"]
cluster_secret = "{SECRET}"
drain_deadline_seconds = 20.0
{more}
"""


def status_of(tmp_path: Path, text: str) -> int:
    file = tmp_path / "router.toml"
    file.write_text(text)
    return run(file)


@pytest.mark.parametrize("more", ["colour = 1", "acquire_deadline_seconds = -1", "= ="])
def test_a_wrong_configuration_is_one_line_and_exit_2(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], more: str
) -> None:
    assert status_of(tmp_path, config_text("127.0.0.1:1", more=more)) == 2
    captured = capfd.readouterr()
    assert captured.err.count("\n") == 1
    assert "router.toml" in captured.err


@pytest.mark.parametrize("key", ["listen", "grpc_listen"])
def test_a_port_in_use_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], key: str
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        text = config_text("127.0.0.1:1")
        text = text.replace(f'{key} = "127.0.0.1:0"', f'{key} = "{address}"', 1)
        text = text.replace(f'grpc_{key} = "{address}"', 'grpc_listen = "127.0.0.1:0"')
        assert status_of(tmp_path, text) == 2
    line = capfd.readouterr().err.splitlines()[-1]
    assert address in line
    assert "in use" in line


class Running:
    """A router process. ``log`` is what it has said so far, an event a line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.log: list[str] = []
        self._reading = asyncio.create_task(self._read())

    @property
    def addresses(self) -> dict[str, str]:
        """Of both listeners, by name; empty until it serves."""
        events = [json.loads(line) for line in self.log]
        return next((event for event in events if event["event"] == "serving"), {})

    @property
    def url(self) -> str:
        return f"http://{self.addresses['http']}"

    async def end(self) -> int:
        """SIGTERM; returns the exit status."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(self.process.wait(), 30)
        await self._reading
        return self.process.returncode or 0

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.log.append(line.decode())


@asynccontextmanager
async def router_process(tmp_path: Path, directory: object) -> AsyncIterator[Running]:
    file = tmp_path / "router.toml"
    file.write_text(config_text(directory))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "contraflow.cli.main", "router", "--config", str(file),
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    router = Running(process)
    try:
        await until(lambda: bool(router.addresses), "the router serves")
        yield router
    finally:
        if process.returncode is None:
            process.kill()
        await router.end()


@asynccontextmanager
async def running(tmp_path: Path, *engines: FakeEngine) -> AsyncIterator[Running]:
    """A router process that follows a directory, which knows the engines."""
    end = asyncio.Event()
    at: asyncio.Future[Address] = asyncio.get_running_loop().create_future()
    config = parse('store = "memory"\nlisten = "127.0.0.1:0"', DirectoryConfig, "test")
    directory = asyncio.create_task(serve_directory(config, stop=end, started=at.set_result))
    address = await asyncio.wait_for(at, 20)
    client = DirectoryClient([address], SystemClock())
    try:
        for engine in engines:
            await client.register(engine.engine, 60.0)
        async with router_process(tmp_path, address) as router:
            yield router
    finally:
        await client.close()
        end.set()
        await asyncio.wait_for(directory, 30)


async def until_healthy(session: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(20):
        while True:
            async with session.get(f"{url}/health") as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.02)


async def test_a_stop_lets_streams_finish_and_the_log_holds_nothing_of_the_client(
    tmp_path: Path,
) -> None:
    released = asyncio.Event()

    async def hold(received: Received) -> None:
        await released.wait()

    async with (
        FakeEngine("p1", Role.PREFILL) as prefill,
        FakeEngine("d1", Role.DECODE) as decode,
        running(tmp_path, prefill, decode) as router,
        aiohttp.ClientSession() as session,
    ):
        await until_healthy(session, router.url)
        decode.script.between_chunks = hold
        body = {
            "model": "tiny", "stream": True, "session_id": "private-session",
            "messages": [{"role": "user", "content": "private-prompt"}],
        }  # fmt: skip
        url = f"{router.url}/v1/chat/completions"
        async with session.post(url, json=body) as response:
            first = await response.content.readline()
            ending = asyncio.create_task(router.end())
            await until(lambda: _refuses(router.url), "new connections are refused")
            released.set()
            rest = await response.read()
        assert (first + rest).endswith(b"data: [DONE]\n\n")
        assert await ending == 0
    events = [json.loads(line) for line in router.log]
    turn = next(event for event in events if event["event"] == "turn_finished")
    assert (turn["decision"], turn["reason"], turn["status"]) == ("RECOMPUTE", "NO_HANDLE", 200)
    assert {"prefill_ms", "ttft_ms", "total_ms"} <= set(turn)
    assert "private" not in "".join(router.log)
    assert SECRET not in "".join(router.log)


async def test_the_grpc_side_serves_plans_with_reasons(tmp_path: Path) -> None:
    async with (
        FakeEngine("p1", Role.PREFILL) as prefill,
        FakeEngine("d1", Role.DECODE) as decode,
        running(tmp_path, prefill, decode) as router,
        aiohttp.ClientSession() as session,
        grpc.aio.insecure_channel(router.addresses["grpc"]) as channel,
    ):
        await until_healthy(session, router.url)
        stub = RouterServiceStub(channel)
        plan = await stub.PlanTurn(pb.PlanTurnRequest(tenant="default", session_id="s"))
        assert plan.reason == pb.DECISION_REASON_NO_HANDLE
        view = await stub.ListViewEngines(pb.ListViewEnginesRequest())
        assert [engine.engine_id for engine in view.engines] == ["d1", "p1"]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.PlanTurn(pb.PlanTurnRequest())
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_stop_lets_calls_finish(tmp_path: Path) -> None:
    released = asyncio.Event()

    async def hold(received: Received) -> None:
        await released.wait()

    async with (
        FakeEngine("p1", Role.PREFILL) as prefill,
        FakeEngine("d1", Role.DECODE) as decode,
        running(tmp_path, prefill, decode) as router,
        aiohttp.ClientSession() as session,
        grpc.aio.insecure_channel(router.addresses["grpc"]) as channel,
    ):
        await until_healthy(session, router.url)
        decode.script.between_chunks = hold
        stub = RouterServiceStub(channel)
        turn = asyncio.create_task(read(stub, chat()))
        await until(lambda: bool(decode.received), "the turn runs")
        ending = asyncio.create_task(router.end())
        await until(lambda: _refuses(router.url), "the router drains")
        _, error, _ = await failure(stub, chat())
        assert error.reason is Reason.NO_ELIGIBLE_ENGINE
        released.set()
        assert kinds(await turn)[-1] == "result"
        assert await ending == 0


async def test_a_prompt_may_be_as_long_as_at_the_front_door(tmp_path: Path) -> None:
    async with (
        FakeEngine("p1", Role.PREFILL) as prefill,
        FakeEngine("d1", Role.DECODE) as decode,
        running(tmp_path, prefill, decode) as router,
        aiohttp.ClientSession() as session,
        grpc.aio.insecure_channel(router.addresses["grpc"]) as channel,
    ):
        await until_healthy(session, router.url)
        events = await read(RouterServiceStub(channel), chat("x" * 5_000_000))
        assert kinds(events)[-1] == "result"


async def test_without_a_directory_it_waits_and_says_so(tmp_path: Path) -> None:
    async with (
        router_process(tmp_path, "127.0.0.1:1") as router,
        aiohttp.ClientSession() as session,
        session.get(f"{router.url}/health") as response,
    ):
        assert response.status == 503
        state = json.loads(await response.read())
        assert state["missing"] == ["prefill", "decode"]
        assert state["directory"] == "not heard yet"


def _refuses(url: str) -> bool:
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) != 0
