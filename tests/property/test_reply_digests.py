"""A reply is known again, of either API, streamed or whole, whatever it says."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from contraflow.router.messages import reply_digest
from contraflow.router.replies import ReplyReader

Json = dict[str, Any]
text = st.text(st.characters(codec="utf-8"), max_size=12)
names = text.filter(bool)
arguments = st.dictionaries(text, st.none() | st.integers(-9, 9) | text, max_size=3)
said = st.tuples(text, st.lists(st.tuples(names, names, arguments), max_size=3))


def pieces(whole: str, data: st.DataObject) -> list[str]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=3)))
    return [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


def as_chat(content: str, calls: list[tuple[str, str, Json]], *, indent: int | None = None) -> Json:
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            {
                "id": one,
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(given, indent=indent)},
            }
            for one, name, given in calls
        ],
    }


def as_messages(content: str, calls: list[tuple[str, str, Json]]) -> Json:
    uses = [{"type": "tool_use", "id": one, "name": name, "input": given}
            for one, name, given in calls]  # fmt: skip
    return {"role": "assistant", "content": [{"type": "text", "text": content}, *uses]}


def event(value: Json) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chat_events(message: Json, data: st.DataObject) -> list[bytes]:
    deltas: list[Json] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in pieces(message["content"], data)]
    for index, call in enumerate(message["tool_calls"]):
        function = {"name": call["function"]["name"], "arguments": ""}
        deltas.append({"tool_calls": [{**call, "index": index, "function": function}]})
        for piece in pieces(call["function"]["arguments"], data):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    return [event({"choices": [{"index": 0, "delta": delta}]}) for delta in deltas]


def messages_events(message: Json, data: st.DataObject) -> list[bytes]:
    events: list[Json] = [{"type": "message_start", "message": {"content": []}}]
    for index, block in enumerate(message["content"]):
        is_text = block["type"] == "text"
        opened = {**block, "text": ""} if is_text else {**block, "input": {}}
        events.append({"type": "content_block_start", "index": index, "content_block": opened})
        for piece in pieces(block["text"] if is_text else json.dumps(block["input"]), data):
            key, kind = ("text", "text_delta") if is_text else ("partial_json", "input_json_delta")
            delta = {"type": kind, key: piece}
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
    return [event(one) for one in events]


@given(said, st.data())
def test_it_has_one_digest_however_it_passes(
    reply: tuple[str, list[tuple[str, str, Json]]], data: st.DataObject
) -> None:
    chat, messages = as_chat(*reply), as_messages(*reply)
    expected = reply_digest(chat)
    assert reply_digest(messages) == expected
    assert reply_digest(as_chat(*reply, indent=2)) == expected
    for events in (chat_events(chat, data), messages_events(messages, data)):
        reader = ReplyReader()
        for one in events:
            reader.feed(one)
        assert reader.digest == expected
    for whole in ({"choices": [{"index": 0, "message": chat}]}, messages):
        reader = ReplyReader()
        reader.read(json.dumps(whole).encode())
        assert reader.digest == expected


@given(said, said)
def test_another_reply_has_another(
    one: tuple[str, list[tuple[str, str, Json]]], other: tuple[str, list[tuple[str, str, Json]]]
) -> None:
    def without_null(reply: tuple[str, list[tuple[str, str, Json]]]) -> object:
        return reply[0], [
            (call_id, name, {key: value for key, value in given.items() if value is not None})
            for call_id, name, given in reply[1]
        ]

    assume(without_null(one) != without_null(other))
    assert reply_digest(as_chat(*one)) != reply_digest(as_chat(*other))
