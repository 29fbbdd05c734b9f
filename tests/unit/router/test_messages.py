"""Canonical messages, and replies known again."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from contraflow.router.messages import canonical, kind_of, messages_of, reply_digest
from contraflow.router.replies import ReplyReader

Json = dict[str, Any]


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


def parts(*texts: str, **more: Any) -> list[Json]:
    return [{"type": "text", "text": text, **more} for text in texts]


SAID = {"role": "user", "content": "to be"}


@pytest.mark.parametrize(
    "sibling",
    [{"content": "to be", "role": "user"}, {**SAID, "name": None}, {**SAID, "tool_calls": []},
     {**SAID, "content": parts("to be")}, {**SAID, "content": parts("to", "", " be")},
     {**SAID, "content": parts("to be", cache_control={"type": "ephemeral"})},
     {**SAID, "content": parts("to be", citations=None)}],
)  # fmt: skip
def test_messages_that_say_the_same(sibling: Json) -> None:
    assert canonical(sibling) == canonical(SAID) == b'{"content":"to be","role":"user"}'


@pytest.mark.parametrize(
    "other",
    [{**SAID, "role": "tool"}, {**SAID, "content": "to  be"}, {**SAID, "content": "to be "},
     {**SAID, "name": "x"}, {**SAID, "content": ["to be"]}, {**SAID, "content": [[]]},
     {**SAID, "content": parts("to be", citations=[1])},
     {**SAID, "content": [{"type": "other", "text": "to be"}]}, {"role": "user"}],
)  # fmt: skip
def test_messages_that_do_not(other: Json) -> None:
    assert canonical(other) != canonical(SAID)


def test_no_content_is_null_is_empty() -> None:
    silent = {"role": "assistant", "tool_calls": [{"id": "c"}]}
    assert canonical(silent) == canonical({**silent, "content": None})
    assert canonical(silent) == canonical({**silent, "content": ""})
    assert canonical(silent) == canonical({**silent, "content": []})


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [("1", "1.0", True), ("100", "1e2", True), ("0.5", "5E-1", True), ("-0.0", "0", True),
     ("1", "true", False), ("0", "false", False), ("1", '"1"', False), ("0.1", "0.10", True),
     ("9007199254740993", "9007199254740992", False), ('"\\u00e9\\/"', '"é/"', True),
     ('{"a":1,"b":null}', '{"a":1}', True), ("[null]", "[]", False)],
)  # fmt: skip
def test_numbers_and_escapes_count_by_value(one: str, other: str, equal: bool) -> None:
    written = [f'[{{"role":"user","content":[{{"input":{value}}}]}}]' for value in (one, other)]
    read = [messages_of("chat", {"messages": msgspec.Raw(text.encode())}) for text in written]
    first, second = (canonical(messages[0]) for messages in read)
    assert (first == second) is equal


def test_a_system_prompt_beside_the_messages_is_the_first() -> None:
    fields = {"messages": raw([SAID]), "system": raw(parts("be brief"))}
    system, said = messages_of("messages", fields)
    assert canonical(system) == canonical({"role": "system", "content": "be brief"})
    assert said == SAID
    assert messages_of("chat", fields) == [SAID]
    assert messages_of("messages", {**fields, "system": raw(None)}) == [SAID]


@pytest.mark.parametrize(
    "text",
    ["null", "7", "{}", "[7]", '["x"]', "[", '[{"content":"\\ud800"}]', '[{"n":1e999}]',
     "[" * 100_000, f'[{{"n":{"9" * 10_000}}}]'],
)  # fmt: skip
def test_what_can_not_be_read_has_no_messages(text: str) -> None:
    assert messages_of("chat", {"messages": msgspec.Raw(text.encode())}) == []
    assert messages_of("chat", {}) == []


def test_paths_with_messages() -> None:
    assert kind_of("/v1/chat/completions")
    assert kind_of("/v1/messages")
    assert kind_of("/v1/chat/completions") != kind_of("/v1/messages")
    assert kind_of("/v1/completions") == ""


def called(arguments: Any, call_id: str = "call_1", name: str = "look_up") -> Json:
    return {
        "id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}
    }  # fmt: skip


CALLING: Json = {"role": "assistant", "content": None, "tool_calls": [called('{"q": "é", "n": 1}')]}


def test_replies_that_a_client_has_written_anew() -> None:
    digest = reply_digest(CALLING)
    rewritten = called('{"n":1.0,"q":"\\u00e9"}')
    assert digest == reply_digest({**CALLING, "tool_calls": [rewritten], "refusal": None})
    assert digest == reply_digest({"role": "assistant", "content": "", "tool_calls": [rewritten]})
    use = {"type": "tool_use", "id": "call_1", "name": "look_up", "input": {"q": "é", "n": 1}}
    assert digest == reply_digest({"role": "assistant", "content": [use]})
    spoken = {"role": "assistant", "content": "to be"}
    assert reply_digest(spoken) == reply_digest({**spoken, "content": parts("to ", "be")})
    assert reply_digest(spoken) == reply_digest({**spoken, "reasoning": "hm", "tool_calls": []})


@pytest.mark.parametrize(
    "calls",
    [[], [called('{"q": "é", "n": 2}')], [called('{"q": "é", "n": 1}', "call_2")],
     [called('{"q": "é", "n": 1}', name="other")], CALLING["tool_calls"] * 2, [{}], 7, ["x"]],
)  # fmt: skip
def test_other_replies(calls: Any) -> None:
    assert reply_digest({**CALLING, "tool_calls": calls}) != reply_digest(CALLING)


@pytest.mark.parametrize("depth", range(100, 1100, 100))
def test_arguments_of_any_depth_have_a_digest_or_none(depth: int) -> None:
    nested = "[" * depth + "]" * depth
    written = {**CALLING, "tool_calls": [called(nested)]}
    reader = ReplyReader()
    reader.read(json.dumps({"choices": [{"message": written}]}).encode())
    assert reader.digest == reply_digest(written)
    assert reader.digest or depth > 300


def chat_events(*deltas: Json) -> list[bytes]:
    chunks = [{"id": "c", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    usage = {"choices": [], "usage": {"prompt_tokens": 3}}
    events = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in (*chunks, usage)]
    return [*events, b"data: [DONE]\n\n"]


def named_events(*events: Json) -> list[bytes]:
    return [
        f"event: {event['type']}\r\ndata: {json.dumps(event)}\r\n\r\n".encode() for event in events
    ]


CHAT_STREAM = chat_events(
    {"role": "assistant", "content": ""},
    {"reasoning": "let me think"},
    {"content": "to "},
    {"content": "bé"},
    {"tool_calls": [{"index": 0, **called("")}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"q":'}}]},
    {"tool_calls": [{"index": 1, **called("{}", "call_2")}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": ' "x"}'}}]},
    {},
)
CHAT_REPLY = {
    "role": "assistant",
    "content": "to bé",
    "tool_calls": [called('{"q":"x"}'), called("{}", "call_2")],
}
MESSAGES_STREAM = named_events(
    {"type": "message_start", "message": {"id": "m", "content": []}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking"}},
    {"type": "content_block_delta", "index": 0,
     "delta": {"type": "thinking_delta", "thinking": "hm"}},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "to bé"}},
    {"type": "content_block_stop", "index": 1},
    {"type": "content_block_start", "index": 2,
     "content_block": {"type": "tool_use", "id": "call_1", "name": "look_up", "input": {}}},
    {"type": "content_block_delta", "index": 2,
     "delta": {"type": "input_json_delta", "partial_json": '{"q": "x'}},
    {"type": "content_block_delta", "index": 2,
     "delta": {"type": "input_json_delta", "partial_json": '"}'}},
    {"type": "content_block_start", "index": 3,
     "content_block": {"type": "tool_use", "id": "call_2", "name": "look_up", "input": {}}},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
    {"type": "message_stop"},
)  # fmt: skip
MESSAGES_REPLY = {
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "to bé"},
        {"type": "tool_use", "id": "call_1", "name": "look_up", "input": {"q": "x"}},
        {"type": "tool_use", "id": "call_2", "name": "look_up", "input": {}},
    ],
}


@pytest.mark.parametrize(
    ("stream", "reply"), [(CHAT_STREAM, CHAT_REPLY), (MESSAGES_STREAM, MESSAGES_REPLY)]
)
@pytest.mark.parametrize("together", [1, 3, 100])
def test_a_reply_that_passed_in_pieces_is_known_again(
    stream: list[bytes], reply: Json, together: int
) -> None:
    reader = ReplyReader()
    for start in range(0, len(stream), together):
        reader.feed(b"".join(stream[start : start + together]))
    assert reader.digest == reply_digest(reply)


def test_a_reply_that_passed_whole_is_known_again() -> None:
    chat, messages = ReplyReader(), ReplyReader()
    chat.read(json.dumps({"choices": [{"index": 0, "message": CHAT_REPLY}]}).encode())
    messages.read(json.dumps({"type": "message", **MESSAGES_REPLY}).encode())
    assert chat.digest == messages.digest == reply_digest(CHAT_REPLY)


@pytest.mark.parametrize("data", [b"{", b"7", b'{"choices": 1}', b"[" * 100_000, b"\xff"])
def test_an_answer_that_can_not_be_read_is_not_known(data: bytes) -> None:
    whole, streamed = ReplyReader(), ReplyReader()
    whole.read(data)
    streamed.feed(b"data: " + data + b"\n\n")
    streamed.feed(CHAT_STREAM[2])
    assert whole.digest == streamed.digest == ""
