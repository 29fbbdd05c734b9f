"""Generate over real gRPC: the messages of a stream, and what they say of claim and pull."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from tests.support.fake_engine import TOOL_CALL
from tests.support.router_stub import chat, kinds, read, text_of
from tests.support.router_world import SESSION, World

from contraflow.core.errors import HandleClaimed
from contraflow.core.instructions import Pull
from contraflow.v1 import handle_pb2
from contraflow.v1 import router_service_pb2 as pb
from contraflow.wire.convert import seconds

if TYPE_CHECKING:
    from contraflow.v1.router_service_pb2_grpc import RouterServiceAsyncStub

pytestmark = pytest.mark.integration

ID = SESSION["session_id"]
PULLED = Pull("PULLED", "d1", 299, 299, 192, 107, 41, 131072, 5, 0.01, 0.02)


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
