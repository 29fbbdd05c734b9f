"""Generate over real gRPC: calls that are cancelled, late, not read, or refused."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs
from tests.support.fake_engine import FakeEngine, Received, hang
from tests.support.router_stub import chat, failure, kinds, read
from tests.support.router_world import SESSION, World
from tests.support.wait import until

from contraflow.core.errors import Reason

if TYPE_CHECKING:
    from contraflow.v1.router_service_pb2_grpc import RouterServiceAsyncStub

pytestmark = pytest.mark.integration

ID = SESSION["session_id"]


class Flow:
    """A long stream of an engine, and how far it has come."""

    def __init__(self, engine: FakeEngine, chunks: list[bytes]) -> None:
        self.sent = 0
        engine.script.events = lambda received: chunks
        engine.script.between_chunks = self._one_more

    async def stalled(self) -> None:
        """Wait until nothing has been sent for a while."""
        seen = [0]

        def stands_still() -> bool:
            seen.append(self.sent)
            return self.sent > 0 and len(set(seen[-30:])) == 1

        await until(stands_still, "the engine gets nowhere")

    async def _one_more(self, received: Received) -> None:
        self.sent += 1


def delta_of(size: int) -> bytes:
    event = {"choices": [{"index": 0, "delta": {"content": "x" * size}}]}
    return f"data: {json.dumps(event)}\n\n".encode()


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_cancelling_aborts_the_engines_request(
    world: World, stub: RouterServiceAsyncStub, leg: str
) -> None:
    engine = world.prefill if leg == "prefill" else world.decode
    engine.script.before_answer = hang
    call = stub.Generate(chat(session_id=ID), timeout=30)
    await until(lambda: bool(engine.received), f"{leg} runs")

    call.cancel()

    await until(lambda: engine.last.disconnected, f"{leg} is aborted")
    assert world.app.homes.by_key == {}


async def test_cancelling_in_mid_stream_aborts_decode(
    world: World, stub: RouterServiceAsyncStub
) -> None:
    world.decode.script.between_chunks = hang
    call = stub.Generate(chat(session_id=ID), timeout=30)
    events = aiter(call)
    assert (await anext(events)).HasField("plan")
    assert (await anext(events)).HasField("chunk")

    call.cancel()

    await until(lambda: world.decode.last.disconnected, "decode is aborted")
    assert world.app.homes.by_key == {}


async def test_a_deadline_that_passes_aborts_the_engines_request(
    world: World, stub: RouterServiceAsyncStub
) -> None:
    world.decode.script.before_answer = hang
    call = stub.Generate(chat(session_id=ID), timeout=2.0)
    await until(lambda: bool(world.decode.received), "decode runs")
    await until(lambda: world.decode.last.disconnected, "decode is aborted")
    assert (await call.code()).name == "DEADLINE_EXCEEDED"


@pytest.mark.parametrize("cause", ["cancel", "deadline"])
async def test_a_reader_that_leaves_without_having_read_is_no_error(
    world: World, stub: RouterServiceAsyncStub, cause: str
) -> None:
    flow = Flow(world.decode, [delta_of(32 * 1024)] * 2000)
    with capture_logs() as logs:
        call = stub.Generate(chat(session_id=ID), timeout=4 if cause == "deadline" else 30)
        assert (await anext(aiter(call))).HasField("plan")
        await flow.stalled()
        if cause == "cancel":
            call.cancel()
        await until(lambda: world.decode.last.disconnected, "decode is aborted")
        await until(lambda: bool(logs), "the turn ends")
        assert await world.app.generations.drain(30) == 0
    assert [(entry["event"], entry["error"]) for entry in logs] == [("turn_finished", "ClientGone")]
    assert world.app.homes.by_key == {}


async def test_a_reader_that_does_not_read_stops_the_engine(
    world: World, stub: RouterServiceAsyncStub
) -> None:
    size, count = 32 * 1024, 2000
    flow = Flow(world.decode, [delta_of(size)] * count + [b"data: [DONE]\n\n"])
    call = stub.Generate(chat(), timeout=60)
    assert (await anext(aiter(call))).HasField("plan")

    await flow.stalled()

    assert flow.sent < count / 2  # sockets buffer a few MB

    received = 0
    async for event in call:
        received += len(event.chunk.text)
    assert received == size * count
    assert flow.sent == count


async def test_calls_are_refused_once_the_router_drains(
    world: World, stub: RouterServiceAsyncStub
) -> None:
    released = asyncio.Event()

    async def hold(received: Received) -> None:
        await released.wait()

    world.decode.script.between_chunks = hold
    running = asyncio.create_task(read(stub, chat()))
    await until(lambda: bool(world.decode.received), "a turn runs")

    assert await world.app.generations.drain(0.0) == 1
    draining = asyncio.create_task(world.app.generations.drain(30.0))
    _, error, _ = await failure(stub, chat())
    assert error.reason is Reason.NO_ELIGIBLE_ENGINE
    assert "stopping" in str(error)
    released.set()

    assert kinds(await running)[-1] == "result"
    assert await draining == 0
