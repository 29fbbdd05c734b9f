"""Text and tokens, chat history, and tool calls in it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contraflow.sim.http.tool_calls import ToolCall, ToolCallParser
from contraflow.sim.text import (
    IM_END,
    IM_START,
    SPECIALS,
    TextStream,
    decode,
    encode,
    render_call,
    render_chat,
)
from contraflow.sim.vocab import VOCAB_SIZE

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
texts = st.text(st.characters(exclude_categories=["Cs"]))
token_ids = st.lists(st.integers(0, VOCAB_SIZE - 1))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


@given(texts)
def test_text_comes_back_from_its_tokens(text: str) -> None:
    assert decode(encode(text)) == text


@given(texts)
def test_a_byte_is_a_token(text: str) -> None:
    assert encode(text) == list(text.encode())


def test_every_special_token_has_a_name_that_stands_for_it() -> None:
    assert sorted(SPECIALS.values()) == list(range(256, VOCAB_SIZE))
    assert encode("a<|im_start|>b<|im_end|>") == [97, IM_START, 98, IM_END]
    assert encode(decode(range(256, VOCAB_SIZE))) == list(range(256, VOCAB_SIZE))


@given(texts, st.data())
def test_a_stream_gives_the_same_text_wherever_it_is_cut(text: str, data: st.DataObject) -> None:
    ids = encode(text)
    cut = data.draw(st.integers(0, len(ids)))
    stream = TextStream()
    assert stream.feed(ids[:cut]) + stream.feed([*ids[cut:], IM_END], final=True) == text


def test_a_conversation_is_rendered_with_markers_and_one_line_of_role() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]
    assert render_chat(messages) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("system", [True, False])
def test_tools_stand_in_the_system_turn(system: bool) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    before = ""
    if system:
        messages.insert(0, {"role": "system", "content": "Be brief."})
        before = "Be brief.\n\n"
    assert render_chat(messages, [TOOL], add_generation_prompt=False) == (
        f"<|im_start|>system\n{before}# Tools\n\n<tools>\n{json.dumps(TOOL)}\n</tools><|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
    )


def test_results_of_tools_are_turns_of_the_user() -> None:
    rendered = render_chat([{"role": "tool", "content": "42"}], add_generation_prompt=False)
    expected = "<tool_response>\n42\n</tool_response>"
    assert rendered == f"<|im_start|>user\n{expected}<|im_end|>\n"


@pytest.mark.parametrize(
    "message",
    [
        "text",
        {"content": "no role"},
        {"role": "user", "content": 5},
        {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
        {"role": "assistant", "tool_calls": [{"id": "call-1"}]},
        {"role": "assistant", "tool_calls": 5},
    ],
)
def test_what_is_no_message_is_refused_by_its_place(message: Any) -> None:
    with pytest.raises(ValueError, match=r"messages\[1\]"):
        render_chat([{"role": "user", "content": "Hi"}, message])


def parsed(generated: str, cuts: list[int] | None = None) -> tuple[str, list[ToolCall]]:
    parser, content, calls = ToolCallParser(), "", list[ToolCall]()
    edges = [0, *sorted(cuts or []), len(generated)]
    for start, end in pairwise(edges):
        text, found = parser.feed(generated[start:end])
        content += text
        calls += found
    return content + parser.finish(), calls


def as_message(content: str, calls: list[ToolCall]) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": content or None,
        "tool_calls": [call.openai() for call in calls],
    }


calls_text = st.builds(
    lambda name, value, compact: render_call(
        name, json.dumps(value, separators=(",", ":") if compact else None)
    ),
    texts,
    json_values,
    st.booleans(),
)
replies = st.builds(
    lambda before, calls: before + "\n".join(calls), texts, st.lists(calls_text, max_size=3)
)


@given(replies, st.data())
def test_a_reply_is_rendered_as_it_was_generated_however_it_was_streamed(
    generated: str, data: st.DataObject
) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(generated)), max_size=4))
    content, calls = parsed(generated, cuts)
    rendered = render_chat([as_message(content, calls)], add_generation_prompt=False)
    assert rendered == f"<|im_start|>assistant\n{generated}<|im_end|>\n"
    assert len(calls) == generated.count("<tool_call>\n{")
    assert (content, [(c.name, c.arguments) for c in calls]) == (
        parsed(generated)[0],
        [(c.name, c.arguments) for c in parsed(generated)[1]],
    )


@pytest.mark.parametrize(
    "generated",
    [
        "<tool_call>",
        "a < b <tool",
        '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_cal',
        '<tool_call>{"name": "look", "arguments": {}}</tool_call>',
        '<tool_call>\n{"name": "look", "arguments": {"a": }}\n</tool_call>',
        '<tool_call>\n{"name": "l\\u006fok", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"arguments": {}}\n</tool_call>',
    ],
)
def test_what_would_not_come_back_as_generated_is_content(generated: str) -> None:
    assert parsed(generated, [3, 9]) == (generated, [])


def test_text_after_the_last_call_is_content() -> None:
    content, calls = parsed(f"Look.{render_call('look', '{}')} done")
    assert (content, len(calls)) == ("Look. done", 1)


def test_calls_have_ids_of_their_own() -> None:
    call = render_call("look", "{}")
    _, calls = parsed(f"{call}\n{call}")
    assert len({call.id for call in calls}) == 2
