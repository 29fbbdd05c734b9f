"""Generate over real gRPC: messages, token ids and raw bodies as the engines get them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.support.fake_engine import TOOL_CALL
from tests.support.router_stub import kinds, read, text_of
from tests.support.router_world import KEY, SESSION, World

from contraflow.v1 import router_service_pb2 as pb

if TYPE_CHECKING:
    from contraflow.v1.router_service_pb2_grpc import RouterServiceAsyncStub

pytestmark = pytest.mark.integration

ID = SESSION["session_id"]


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
