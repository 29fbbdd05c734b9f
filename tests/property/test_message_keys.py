"""Any conversation, written in any way: equal keys for equal messages, and for no others."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from contraflow.core.session import message_chain, message_key
from contraflow.router.messages import canonical, messages_of

SECRET = b"s" * 32
Message = dict[str, Any]

# Unicode without surrogates: what is not UTF-8 is refused before.
text = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
call = st.builds(
    lambda name, arguments: {
        "id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}
    },
    text, text,
)  # fmt: skip
message = st.builds(
    lambda role, content, calls: {
        "role": role, "content": content, **({"tool_calls": calls} if calls else {})
    },
    st.sampled_from(["system", "user", "assistant", "tool"]),
    text,
    st.lists(call, max_size=2),
)  # fmt: skip
history = st.lists(message, min_size=1, max_size=6)


def keys(written: str) -> list[str]:
    fields = {"messages": msgspec.Raw(written.encode())}
    messages = map(canonical, messages_of("chat", fields))
    return [message_key(SECRET, link) for link in message_chain(SECRET, "t", "m", "chat", messages)]


def keys_of(messages: list[Message]) -> list[str]:
    return keys(json.dumps(messages))


@given(history, st.integers(1, 6))
def test_the_keys_of_a_prefix_are_the_prefix_of_the_keys(
    messages: list[Message], count: int
) -> None:
    assert keys_of(messages[:count]) == keys_of(messages)[:count]


@given(history, history)
def test_different_histories_share_no_key(one: list[Message], other: list[Message]) -> None:
    equal = 0
    while equal < min(len(one), len(other)) and one[equal] == other[equal]:
        equal += 1
    first, second = keys_of(one), keys_of(other)
    assert first[:equal] == second[:equal]
    assert not set(first[equal:]) & set(second)
    assert len(set(first)) == len(first)


@st.composite
def rewritten(draw: st.DrawFn, messages: list[Message]) -> list[Message]:
    """The same messages as another client would write them."""
    out = []
    for message in messages:
        content = message["content"]
        if draw(st.booleans()):
            cut = draw(st.integers(0, len(content)))
            marks = {"cache_control": {"type": "ephemeral"}} if draw(st.booleans()) else {}
            parts = [{"type": "text", "text": content[:cut]}, {"text": content[cut:], **marks}]
            content = [{"type": "text", **part} for part in parts]
        nulls = dict.fromkeys(draw(st.sets(st.sampled_from(["name", "refusal"]))))
        members = list({**message, "content": content, **nulls}.items())
        out.append(dict(draw(st.permutations(members))))
    return out


@given(st.data(), history)
def test_how_json_is_written_makes_no_difference(data: st.DataObject, one: list[Message]) -> None:
    other = data.draw(rewritten(one))
    indent = data.draw(st.sampled_from([None, 2]))
    written = json.dumps(other, indent=indent, ensure_ascii=data.draw(st.booleans()))
    assert keys(written) == keys_of(one)
