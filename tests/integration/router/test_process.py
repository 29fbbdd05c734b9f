"""The router as it is started and stopped."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import grpc
import pytest
from tests.integration.router.process import SECRET, RouterProcess, config_text, router_process
from tests.support.fake_engine import FakeEngine, Received
from tests.support.router_stub import chat, failure, kinds, read
from tests.support.running_directory import ANY_PORT, running_directory
from tests.support.wait import until

from contraflow.core.errors import Reason
from contraflow.core.fleet import Role
from contraflow.directory.config import DirectoryConfig
from contraflow.router.main import run
from contraflow.runtime.clock import SystemClock
from contraflow.runtime.directory_client import DirectoryClient
from contraflow.v1 import router_service_pb2 as pb
from contraflow.v1.router_service_pb2_grpc import RouterServiceStub

if TYPE_CHECKING:
    from contraflow.v1.router_service_pb2_grpc import RouterServiceAsyncStub

pytestmark = pytest.mark.integration


@dataclass
class Serving:
    """A router process that can serve turns on p1 and d1, and its clients."""

    router: RouterProcess
    decode: FakeEngine
    session: aiohttp.ClientSession
    stub: RouterServiceAsyncStub

    def hold_streams(self) -> asyncio.Event:
        """Streams stand still after their first chunk until this is set."""
        released = asyncio.Event()

        async def hold(received: Received) -> None:
            await released.wait()

        self.decode.script.between_chunks = hold
        return released


@pytest.fixture
async def serving(tmp_path: Path) -> AsyncIterator[Serving]:
    async with (
        FakeEngine("p1", Role.PREFILL) as prefill,
        FakeEngine("d1", Role.DECODE) as decode,
        running_directory(DirectoryConfig(listen=ANY_PORT, store="memory")) as directory,
    ):
        client = DirectoryClient([directory], SystemClock())
        for engine in (prefill, decode):
            await client.register(engine.engine, 60.0)
        await client.close()
        async with (
            router_process(tmp_path, directory) as router,
            aiohttp.ClientSession() as session,
            grpc.aio.insecure_channel(router.addresses["grpc"]) as channel,
        ):
            await router.healthy(session)
            yield Serving(router, decode, session, RouterServiceStub(channel))


def status_of(folder: Path, text: str) -> int:
    file = folder / "router.toml"
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
        assert status_of(tmp_path, config_text("127.0.0.1:1", **{key: address})) == 2
    line = capfd.readouterr().err.splitlines()[-1]
    assert address in line
    assert "in use" in line


async def test_a_stop_lets_streams_finish_and_the_log_holds_nothing_of_the_client(
    serving: Serving,
) -> None:
    router = serving.router
    released = serving.hold_streams()
    body = {
        "model": "tiny", "stream": True, "session_id": "private-session",
        "messages": [{"role": "user", "content": "private-prompt"}],
    }  # fmt: skip
    async with serving.session.post(f"{router.url}/v1/chat/completions", json=body) as response:
        first = await response.content.readline()
        ending = asyncio.create_task(router.end())
        await until(router.refuses, "new connections are refused")
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


async def test_the_grpc_side_serves_plans_with_reasons(serving: Serving) -> None:
    plan = await serving.stub.PlanTurn(pb.PlanTurnRequest(tenant="default", session_id="s"))
    assert plan.reason == pb.DECISION_REASON_NO_HANDLE
    view = await serving.stub.ListViewEngines(pb.ListViewEnginesRequest())
    assert [engine.engine_id for engine in view.engines] == ["d1", "p1"]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await serving.stub.PlanTurn(pb.PlanTurnRequest())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_stop_lets_calls_finish(serving: Serving) -> None:
    released = serving.hold_streams()
    turn = asyncio.create_task(read(serving.stub, chat()))
    await until(lambda: bool(serving.decode.received), "the turn runs")
    ending = asyncio.create_task(serving.router.end())
    await until(serving.router.refuses, "the router drains")
    _, error, _ = await failure(serving.stub, chat())
    assert error.reason is Reason.NO_ELIGIBLE_ENGINE
    released.set()
    assert kinds(await turn)[-1] == "result"
    assert await ending == 0


async def test_a_prompt_may_be_as_long_as_at_the_front_door(serving: Serving) -> None:
    events = await read(serving.stub, chat("x" * 5_000_000))
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
