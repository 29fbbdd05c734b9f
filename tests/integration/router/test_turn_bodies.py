"""What passes between client and engines as it is, what is changed, and what is kept from whom."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.support.fake_engine import TOOL_CALL
from tests.support.router_world import SECRET, SESSION, World, config_of, router_world

from contraflow.core.session import session_key

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("vllm", ["0.32", "0.33"])
async def test_scenario_12_a_stream_passes_byte_for_byte_without_parameters(
    world: World, vllm: str
) -> None:
    world.decode.script.vllm = world.prefill.script.vllm = vllm
    answer = await world.chat(**SESSION, stream=True, stream_options={"include_usage": True})

    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert b"kv_transfer_params" not in answer.raw
    sent = world.decode.stream_chunks(None)
    got = answer.raw.split(b"\n\n")[:-1]
    assert len(got) == len(sent)
    for index in (0, 1, 2, 4, 5):
        assert got[index] + b"\n\n" == sent[index]
    last = json.loads(sent[3].removeprefix(b"data: "))
    last.pop("kv_transfer_params", None)
    assert json.loads(got[3].removeprefix(b"data: ")) == last
    assert "stream_options" not in world.prefill.last.body
    assert world.decode.last.body["stream_options"] == {"include_usage": True}


async def test_scenario_27_tool_calls_and_null_content_pass(world: World) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]}
    world.decode.script.message = message
    history = [
        {"role": "user", "content": "hi"},
        message,
        {"role": "tool", "tool_call_id": "call_1", "content": "42"},
    ]
    tools = [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]

    answer = await world.chat(**SESSION, messages=history, tools=tools, tool_choice="auto")

    for received in (world.prefill.last, world.decode.last):
        assert received.body["messages"] == history
        assert received.body["tools"] == tools
        assert json.dumps(TOOL_CALL).encode() in received.raw
    assert json.dumps(message).encode() in answer.raw


async def test_completions_with_token_ids_take_both_legs(world: World) -> None:
    answer = await world.chat(path="/v1/completions", prompt=[1, 2, 3], **SESSION)
    assert answer.status == 200
    assert world.prefill.last.path == world.decode.last.path == "/v1/completions"
    assert world.prefill.last.body["prompt"] == [1, 2, 3]


async def test_engines_see_neither_session_ids_nor_the_clients_parameters(world: World) -> None:
    evil = {"remote_host": "10.6.6.6", "do_remote_prefill": True}
    secret_names = {"session_id": "s-secret", "conversation_id": "c-secret",
                    "prompt_cache_key": "p-secret", "cache_salt": "salt-secret"}  # fmt: skip
    xargs = {"session_id": "x-secret", "kv_transfer_params": "boom", "kept": 1}
    headers = {"X-Session-ID": "h-secret", "Authorization": "Bearer t-secret",
               "X-data-parallel-rank": "7", "X-Request-ID": "mine",
               "traceparent": "00-1-2-03"}  # fmt: skip
    answer = await world.chat(
        kv_transfer_params=evil, vllm_xargs=xargs, headers=headers, **secret_names
    )

    assert answer.headers["x-request-id"] == "mine"
    for received in (world.prefill.last, world.decode.last):
        seen = received.raw + repr(received.headers).encode()
        assert b"secret" not in seen
        assert b"10.6.6.6" not in seen
        assert received.body["session_id"] == session_key(SECRET, "default", "s-secret")
        assert len(received.body["cache_salt"]) == 32
        assert received.body["vllm_xargs"] == {"kept": 1}
        assert received.headers["x-data-parallel-rank"] == "0"
        assert received.headers["x-request-id"] == answer.plan["turn"]
        assert received.headers["traceparent"] == "00-1-2-03"
    assert world.prefill.last.body["cache_salt"] == world.decode.last.body["cache_salt"]


async def test_engines_get_the_engine_key_and_the_rank() -> None:
    async with router_world(config_of('engine_api_key = "e-key"')) as world:
        world.know(replace(world.decode.engine, dp_rank=3))
        await world.chat()
        assert world.prefill.last.headers["authorization"] == "Bearer e-key"
        assert world.decode.last.headers["x-data-parallel-rank"] == "3"
