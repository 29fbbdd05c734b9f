"""Chat and the Messages API over one engine: history, tools, streams."""

from __future__ import annotations

import json

import pytest
from tests.integration.sim.conftest import MODEL, Json, Serve
from tests.support.scripted_engine import ScriptedEngine

from contraflow.cli.demo.chat_client import Answer
from contraflow.cli.demo.script import TOOLS
from contraflow.sim.text import decode, encode, render_call, render_chat
from contraflow.sim.vocab import EOS

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
ASKED: Json = {"role": "user", "content": "Why?"}
BODY: Json = {"model": MODEL, "messages": [ASKED], "return_token_ids": True, "temperature": 0}
CALLS = (
    render_call("read_log", '{"service": "pay",  "pattern": "é"}'),
    render_call("query", '{"statement": "SELECT 1"}'),
)
SAID = "Look. " + "\n".join(CALLS)


@pytest.fixture
def calling() -> ScriptedEngine:
    return ScriptedEngine(lambda request: SAID)


async def test_an_answer_in_one_piece(serve: Serve, engine: ScriptedEngine) -> None:
    status, answer = await (await serve(engine)).post(CHAT, BODY, X_Request_Id="r-1")

    assert status == 200
    assert answer["id"] == "chatcmpl-r-1"
    assert answer["prompt_token_ids"] == encode(render_chat([ASKED]))
    assert answer["kv_transfer_params"] == engine.params
    (choice,) = answer["choices"]
    assert (choice["message"]["role"], choice["message"]["content"]) == ("assistant", "hello")
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"
    assert choice["token_ids"] == [*b"hello", EOS]
    assert engine.received[0].request_id.startswith("chatcmpl-r-1-")


async def test_without_a_limit_an_answer_may_fill_the_context(
    serve: Serve, engine: ScriptedEngine
) -> None:
    client = await serve(engine, length=100)
    _, answer = await client.post(CHAT, BODY)
    assert engine.received[0].max_tokens == 100 - answer["usage"]["prompt_tokens"]
    await client.post(CHAT, {**BODY, "max_tokens": 9, "max_completion_tokens": 3})
    assert engine.received[1].max_tokens == 3


@pytest.mark.parametrize("vllm", ["0.32.0", "0.33.0"])
async def test_the_chunks_of_a_stream_are_vllms(
    serve: Serve, engine: ScriptedEngine, vllm: str
) -> None:
    client = await serve(engine, vllm=vllm)
    stream = await client.stream(CHAT, {**BODY, "stream_options": {"include_usage": True}})

    first, *others, usage = stream.chunks
    assert stream.done
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["prompt_token_ids"] == encode(render_chat([ASKED]))
    assert "kv_transfer_params" not in first
    assert usage["usage"]["completion_tokens"] == 6
    assert stream.token_ids() == [*b"hello", EOS]
    carried = [chunk.get("kv_transfer_params", "absent") for chunk in others]
    if vllm == "0.32.0":
        assert set(map(str, carried)) == {"absent"}
    else:
        assert carried == [None] * 5 + [engine.params]
    assert others[-1]["choices"][0]["finish_reason"] == "stop"


async def test_calls_come_back_as_they_were_generated(
    serve: Serve, calling: ScriptedEngine
) -> None:
    client = await serve(calling)
    body = {**BODY, "tools": TOOLS}
    _, answer = await client.post(CHAT, body)
    heard = Answer()
    for chunk in (await client.stream(CHAT, body)).chunks:
        heard.take(chunk)

    (choice,) = answer["choices"]
    assert choice["finish_reason"] == heard.finish_reason == "tool_calls"
    for message in (choice["message"], heard.message()):
        assert message["content"] == "Look. "
        assert [call["function"]["name"] for call in message["tool_calls"]] == ["read_log", "query"]
        assert len({call["id"] for call in message["tool_calls"]}) == 2
        history = [ASKED, message, {"role": "tool", "content": "42"}]
        _, tokenized = await client.post(
            "/tokenize", {"model": MODEL, "messages": history, "tools": list(TOOLS)}
        )
        spoken = answer["prompt_token_ids"] + choice["token_ids"]
        assert tokenized["tokens"][: len(spoken)] == spoken


@pytest.mark.parametrize("fields", [{}, {"tools": list(TOOLS), "tool_choice": "none"}])
async def test_calls_that_nobody_asked_for_are_content(
    serve: Serve, calling: ScriptedEngine, fields: Json
) -> None:
    _, answer = await (await serve(calling)).post(CHAT, {**BODY, **fields})
    assert answer["choices"][0]["message"]["content"] == SAID
    assert answer["choices"][0]["finish_reason"] == "stop"


async def test_a_call_that_is_cut_off_is_content(serve: Serve, calling: ScriptedEngine) -> None:
    body = {**BODY, "tools": TOOLS, "max_tokens": 40}
    client = await serve(calling)
    _, answer = await client.post(CHAT, body)
    stream = await client.stream(CHAT, body)
    said = "".join(delta["delta"].get("content", "") for delta in stream.deltas())
    assert said == answer["choices"][0]["message"]["content"] == SAID.encode()[:40].decode()
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_what_is_no_conversation_is_refused(serve: Serve, engine: ScriptedEngine) -> None:
    client = await serve(engine)
    for messages in ([], [{"content": "no role"}]):
        status, answer = await client.post(CHAT, {**BODY, "messages": messages})
        assert (status, answer["error"]["param"]) == (400, "messages")


MESSAGES_BODY: Json = {
    "model": MODEL,
    "max_tokens": 200,
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [ASKED],
    "tools": [
        {"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]}
        for tool in TOOLS
    ],
}


async def test_a_message_in_one_piece(serve: Serve, calling: ScriptedEngine) -> None:
    calling.cached = 5
    status, answer = await (await serve(calling)).post(MESSAGES, MESSAGES_BODY)

    assert status == 200
    assert (answer["type"], answer["role"]) == ("message", "assistant")
    assert answer["stop_reason"] == "tool_use"
    assert [block["type"] for block in answer["content"]] == ["text", "tool_use", "tool_use"]
    assert answer["content"][0]["text"] == "Look. "
    assert answer["content"][1]["input"] == {"service": "pay", "pattern": "é"}
    usage = answer["usage"]
    prompt = len(calling.received[0].prompt_token_ids)
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == prompt
    assert usage["output_tokens"] == len(SAID.encode()) + 1
    assert answer["kv_transfer_params"] == calling.params


async def test_a_message_as_events(serve: Serve, calling: ScriptedEngine) -> None:
    stream = await (await serve(calling)).stream(MESSAGES, MESSAGES_BODY)

    assert not stream.done
    assert stream.names == [chunk["type"] for chunk in stream.chunks]
    kinds = [name for name in stream.names if name != "content_block_delta"]
    block = ["content_block_start", "content_block_stop"]
    assert kinds == ["message_start", *block * 3, "message_delta", "message_stop"]
    inputs = [
        json.loads(chunk["delta"]["partial_json"])
        for chunk in stream.chunks
        if chunk.get("delta", {}).get("type") == "input_json_delta"
    ]
    assert inputs == [{"service": "pay", "pattern": "é"}, {"statement": "SELECT 1"}]
    indexes = [c["index"] for c in stream.chunks if c["type"] == "content_block_stop"]
    assert indexes == [0, 1, 2]
    delta = stream.chunks[-2]
    assert delta["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert delta["usage"]["output_tokens"] == len(SAID.encode()) + 1
    assert "kv_transfer_params" not in json.dumps(stream.chunks)


async def test_blocks_of_tools_are_the_turns_that_chat_has(
    serve: Serve, engine: ScriptedEngine
) -> None:
    client = await serve(engine)
    use = {"type": "tool_use", "id": "t1", "name": "query", "input": {"statement": "SELECT 1"}}
    thought = {"type": "thinking", "thinking": "Hm."}
    answer = [{"type": "text", "text": "42"}]
    result = {"type": "tool_result", "tool_use_id": "t1", "content": answer}
    turns = [
        ASKED,
        {"role": "assistant", "content": [thought, {"type": "text", "text": "Look."}, use]},
        {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
    ]
    await client.post(MESSAGES, {"model": MODEL, "max_tokens": 5, "messages": turns})
    call = {"function": {"name": "query", "arguments": '{"statement": "SELECT 1"}'}}
    assert decode(engine.received[0].prompt_token_ids) == render_chat(
        [
            ASKED,
            {"role": "assistant", "content": "Look.", "tool_calls": [call]},
            {"role": "tool", "content": "42"},
            {"role": "user", "content": "So?"},
        ]
    )


@pytest.mark.parametrize(
    ("fields", "reason", "sequence"),
    [
        ({}, "end_turn", None),
        ({"max_tokens": 2}, "max_tokens", None),
        ({"stop_sequences": ["ll"]}, "stop_sequence", "ll"),
    ],
)
async def test_why_a_message_stopped(
    serve: Serve, engine: ScriptedEngine, fields: Json, reason: str, sequence: str | None
) -> None:
    body = {"model": MODEL, "max_tokens": 20, "messages": [ASKED], **fields}
    _, answer = await (await serve(engine)).post(MESSAGES, body)
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, sequence)


async def test_errors_of_messages_have_anthropics_shape(
    serve: Serve, engine: ScriptedEngine
) -> None:
    client = await serve(engine)
    status, answer = await client.post(MESSAGES, {**MESSAGES_BODY, "model": "other"})
    assert (status, answer["type"]) == (404, "error")
    assert answer["error"]["type"] == "NotFoundError"
    image = {"role": "user", "content": [{"type": "image", "source": {}}]}
    status, answer = await client.post(MESSAGES, {**MESSAGES_BODY, "messages": [image]})
    assert (status, answer["error"]["type"]) == (400, "BadRequestError")
    assert "image" in answer["error"]["message"]
