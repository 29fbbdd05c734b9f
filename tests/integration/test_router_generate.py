"""Generate over real gRPC: prompts, the messages of a stream, claims, what is passed on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs
from tests.support.fake_engine import TOOL_CALL, FakeEngine, Received
from tests.support.router_stub import chat, kinds, read, router_stub, text_of
from tests.support.router_world import SECRET, SESSION, World, config_of, router_world
from tests.support.wait import until

from contraflow.core.errors import HandleClaimed
from contraflow.core.instructions import Pull
from contraflow.core.session import session_key
from contraflow.v1 import handle_pb2
from contraflow.v1 import router_service_pb2 as pb
from contraflow.wire.convert import seconds

if TYPE_CHECKING:
    from contraflow.v1.router_service_pb2_grpc import RouterServiceAsyncStub

pytestmark = pytest.mark.integration

ID = SESSION["session_id"]
KEY = session_key(SECRET, "default", ID)
PULLED = Pull("PULLED", "d1", 299, 299, 192, 107, 41, 131072, 5, 0.01, 0.02)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with router_world() as world:
        yield world


@pytest.fixture
async def stub(world: World) -> AsyncIterator[RouterServiceAsyncStub]:
    async with router_stub(world) as stub:
        yield stub


# Messages of a stream.


async def test_a_plan_then_chunks_then_usage_then_the_result(
    world: World, stub: RouterServiceAsyncStub
) -> None:
    events = await read(stub, chat(session_id=ID))

    assert kinds(events) == ["plan", "chunk", "chunk", "chunk", "chunk", "usage", "result"]
    plan, chunks, usage, result = events[0].plan, events[1:-2], events[-2].usage, events[-1].result
    assert (plan.decision, plan.reason) == (pb.DECISION_RECOMPUTE, pb.DECISION_REASON_NO_HANDLE)
    assert (plan.prefill_engine_id, plan.decode_engine_id) == ("p1", "d1")
    assert world.decode.last.headers["x-request-id"] == plan.turn_id
    assert text_of(events) == "to be é"
    assert [event.chunk.finish_reason for event in chunks] == ["", "", "", "stop"]
    call = json.loads(chunks[2].chunk.json)["choices"][0]["delta"]["tool_calls"]
    assert call == [TOOL_CALL]
    assert (usage.prompt_tokens, usage.completion_tokens) == (300, 2)
    assert (result.decision, result.reason) == (plan.decision, plan.reason)
    assert not result.HasField("pull")
    assert 0 < seconds(result.prefill_time) <= seconds(result.time_to_first_token)
    assert seconds(result.time_to_first_token) <= seconds(result.total_time)


async def test_the_plan_comes_before_anything_is_asked(
    world: World, stub: RouterServiceAsyncStub
) -> None:
    world.know_session()
    world.agent.hold = asyncio.Event()
    call = stub.Generate(chat(session_id=ID), timeout=30)

    first = await anext(aiter(call))
    assert first.plan.decision == pb.DECISION_PULL
    assert first.plan.handle_tokens == 299
    assert not world.prefill.received

    world.agent.hold.set()
    assert [event.WhichOneof("event") async for event in call][-1] == "result"


@pytest.mark.parametrize("vllm", ["0.32", "0.33"])
async def test_the_parameters_of_an_engine_reach_no_client(
    world: World, stub: RouterServiceAsyncStub, vllm: str
) -> None:
    world.decode.script.vllm = world.prefill.script.vllm = vllm
    events = await read(stub, chat(session_id=ID))
    assert "kv_transfer_params" in world.decode.last.body
    assert "kv_transfer_params" not in str(events)


# Prompts.


async def test_messages_with_everything_set(world: World, stub: RouterServiceAsyncStub) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]}
    answer = {"tool_call_id": "call_1"}
    request = pb.GenerateRequest(
        model="tiny",
        session_id=ID,
        messages=pb.Messages(messages=[
            pb.Message(role="user", content="é"),
            pb.Message(role="ignored", content="ignored", extra_json=json.dumps(call)),
            pb.Message(role="tool", content="42", extra_json=json.dumps(answer)),
        ]),
        sampling=pb.Sampling(max_tokens=9, temperature=0, top_p=0.5, seed=-7, stop=["a", "b"]),
        extra_json=json.dumps({
            "model": "other", "stream": False, "max_completion_tokens": 99, "top_k": 5,
            "stream_options": {"continuous_usage_stats": True}, "messages": [],
        }),
    )  # fmt: skip

    await read(stub, request)

    body = world.decode.last.body
    params = body.pop("kv_transfer_params")
    assert params["contraflow"]["session_key"] == KEY
    assert body.pop("cache_salt")
    assert body == {
        "model": "tiny",
        "session_id": KEY,
        "messages": [
            {"role": "user", "content": "é"}, call,
            {"role": "tool", "content": "42", "tool_call_id": "call_1"},
        ],
        "max_tokens": 9, "temperature": 0, "top_p": 0.5, "seed": -7, "stop": ["a", "b"],
        "top_k": 5, "stream": True,
        "stream_options": {"continuous_usage_stats": True, "include_usage": True},
    }  # fmt: skip
    assert world.prefill.last.body["messages"] == body["messages"]
    assert world.prefill.last.body["stream"] is False


async def test_token_ids_go_to_completions(world: World, stub: RouterServiceAsyncStub) -> None:
    done = [b'data: {"choices":[{"index":0,"text":"to","finish_reason":"length"}]}\n\n',
            b"data: [DONE]\n\n"]  # fmt: skip
    world.decode.script.events = lambda received: done
    request = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=[1, 2, 4_000_000_000]), sampling=pb.Sampling(max_tokens=1)
    )

    events = await read(stub, request)

    assert kinds(events) == ["plan", "chunk", "result"]
    assert (text_of(events), events[1].chunk.finish_reason) == ("to", "length")
    for received in (world.prefill.last, world.decode.last):
        assert received.path == "/v1/completions"
        assert received.body["prompt"] == [1, 2, 4_000_000_000]


@pytest.mark.parametrize("path", ["", "/v1/chat/completions", "/v1/completions"])
async def test_a_raw_body_goes_as_it_is(
    world: World, stub: RouterServiceAsyncStub, path: str
) -> None:
    raw = '{"messages": [{"role":"user",  "content":"\\u00e9"}], "model": "x", "n": 1}'
    request = pb.GenerateRequest(
        raw=pb.RawRequest(path=path, json=raw), model="tiny", extra_json='{"n": 2, "min_p": 0.1}'
    )

    events = await read(stub, request)

    assert kinds(events)[-1] == "result"
    received = world.decode.last
    assert received.path == (path or "/v1/chat/completions")
    assert b'[{"role":"user",  "content":"\\u00e9"}]' in received.raw
    assert (received.body["model"], received.body["n"]) == ("tiny", 1)
    assert received.body["min_p"] == 0.1
    assert received.body["stream_options"] == {"include_usage": True}


async def test_a_body_of_the_messages_api(world: World, stub: RouterServiceAsyncStub) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    request = pb.GenerateRequest(
        raw=pb.RawRequest(path="/v1/messages", json=json.dumps(body)),
        sampling=pb.Sampling(stop=["END"]),
        session_id=ID,
    )

    events = await read(stub, request)

    assert kinds(events) == ["plan", *["chunk"] * 6, "usage", "result"]
    assert text_of(events) == "to be é"
    assert events[5].chunk.finish_reason == "end_turn"
    usage = events[-2].usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (300, 200, 2)
    prefill, decode = world.prefill.last, world.decode.last
    assert prefill.path == decode.path == "/v1/messages"
    assert (decode.body["model"], decode.body["stop_sequences"]) == ("tiny", ["END"])
    assert "stream_options" not in decode.body
    assert (prefill.body["max_tokens"], prefill.body["stream"]) == (1, False)
    assert (decode.body["max_tokens"], decode.body["stream"]) == (5, True)
    assert decode.params["remote_engine_id"] == "p1"
    assert decode.headers["x-session-id"] == KEY


# Two turns.


async def test_the_second_turn_pulls(world: World, stub: RouterServiceAsyncStub) -> None:
    world.prefill.script.pull = lambda received: (
        PULLED if received.params["contraflow"].get("claim_id") else None
    )
    await read(stub, chat("hi", session_id=ID))
    world.know_session()

    events = await read(stub, chat("hi", "again", session_id=ID))

    plan, result = events[0].plan, events[-1].result
    assert (plan.decision, plan.reason) == (pb.DECISION_PULL, pb.DECISION_REASON_HANDLE_AVAILABLE)
    assert plan.handle_tokens == 299
    assert (result.decision, result.denial) == (pb.DECISION_PULL, "")
    pull = result.pull
    assert pull.outcome == handle_pb2.PULL_OUTCOME_PULLED
    assert (pull.engine_id, pull.remote_engine_id, pull.turn_id) == ("p1", "d1", plan.turn_id)
    assert (pull.pulled_tokens, pull.local_tokens, pull.computed_tokens) == (107, 192, 41)
    assert (pull.bytes, seconds(pull.wall_time)) == (131072, 0.02)
    assert len(world.agent.acquired) == 1


async def test_a_denial_shows_in_the_result(world: World, stub: RouterServiceAsyncStub) -> None:
    world.know_session()
    world.agent.denial = HandleClaimed("another turn has it")

    events = await read(stub, chat(session_id=ID))

    assert events[0].plan.decision == pb.DECISION_PULL
    result = events[-1].result
    assert result.decision == pb.DECISION_RECOMPUTE
    assert result.reason == pb.DECISION_REASON_ACQUIRE_DENIED
    assert result.denial == "HANDLE_CLAIMED"


async def test_turns_of_either_door_are_of_one_conversation(
    world: World, stub: RouterServiceAsyncStub
) -> None:
    await read(stub, chat(session_id=ID))
    assert (await world.chat(**SESSION)).plan["decision"] == "PULL"


async def test_a_request_for_decode_alone_names_no_prefill_engine(
    world: World, stub: RouterServiceAsyncStub
) -> None:
    events = await read(stub, chat(extra_json='{"n": 2}'))
    assert events[0].plan.prefill_engine_id == ""
    assert events[0].plan.reason == pb.DECISION_REASON_UNSUPPORTED_REQUEST
    assert not world.prefill.received


# Ends that come early.


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_cancelling_aborts_the_engines_request(
    world: World, stub: RouterServiceAsyncStub, leg: str
) -> None:
    engine = world.prefill if leg == "prefill" else world.decode
    never = asyncio.Event()

    async def hold(received: Received) -> None:
        await never.wait()

    engine.script.before_answer = hold
    call = stub.Generate(chat(session_id=ID), timeout=30)
    await until(lambda: bool(engine.received), f"{leg} runs")

    call.cancel()

    await until(lambda: engine.last.disconnected, f"{leg} is aborted")
    assert world.app.homes.by_key == {}


async def test_cancelling_in_mid_stream_aborts_decode(
    world: World, stub: RouterServiceAsyncStub
) -> None:
    never = asyncio.Event()

    async def hold(received: Received) -> None:
        await never.wait()

    world.decode.script.between_chunks = hold
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
    never = asyncio.Event()

    async def hold(received: Received) -> None:
        await never.wait()

    world.decode.script.before_answer = hold
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


# Flow.


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
    with pytest.raises(Exception, match="stopping"):
        await read(stub, chat())
    released.set()

    assert kinds(await running)[-1] == "result"
    assert await draining == 0


async def test_tenants_are_told_apart_by_the_key_in_the_metadata() -> None:
    tenants = '[tenants.red]\napi_keys = ["red-key"]\n[tenants.blue]\napi_keys = ["blue-key"]'
    async with router_world(config_of(tenants)) as world, router_stub(world) as stub:
        world.know_session(tenant="red")
        for key, reason in (
            ("blue-key", pb.DECISION_REASON_NO_HANDLE),
            ("red-key", pb.DECISION_REASON_HANDLE_AVAILABLE),
        ):
            metadata = (("authorization", f"Bearer {key}"), ("traceparent", "00-1-2-03"))
            events = await read(stub, chat(session_id=ID), metadata=metadata)
            assert events[0].plan.reason == reason
            assert world.decode.last.headers["traceparent"] == "00-1-2-03"
            assert key not in repr(world.decode.last.headers)
