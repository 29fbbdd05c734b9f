"""Messages of so many values that to read them would hold up all other turns."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from tests.unit.router.test_identity import SECRET, Knowing, fields, identified

from contraflow.core.session import cache_salt, session_key
from contraflow.router.messages import messages_of
from contraflow.router.sessions import Identity

Json = dict[str, Any]
SAID: Json = {"role": "user", "content": "go on"}
PART = {"type": "text", "text": "x"}
MANY = 100_001


def calling(arguments: str, times: int = 1) -> Json:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call] * times}


HUGE: dict[str, list[Json]] = {
    "parts": [{"role": "user", "content": [PART] * MANY}, SAID],
    "parts in all": [{"role": "user", "content": [PART] * 100}] * 1_000,
    "calls": [SAID, calling("{}", MANY // 5), SAID],
    "members": [{**SAID, **dict.fromkeys(map(str, range(MANY)), 1)}],
    "numbers of an input": [{"role": "user", "content": [{"input": [1] * MANY}]}],
    "empty lists": [{"role": "user", "content": [[]] * MANY}],
    "written arguments": [SAID, calling(json.dumps([1] * MANY)), SAID],
    "written arguments of many calls": [SAID, calling(json.dumps([1] * 100), 1_001), SAID],
    "written arguments that break off": [SAID, calling("[" + "[]," * MANY), SAID],
    "text of more than any conversation": [{**SAID, "content": ", " * 5_000_000}],
}


@pytest.mark.parametrize("messages", HUGE.values(), ids=HUGE)
def test_messages_of_too_many_values_name_no_session(messages: list[Json]) -> None:
    sent = fields(messages=messages)
    assert identified(sent) == Identity("t", "", cache_salt(SECRET, "t"))
    named = identified(fields(messages=messages, session_id="a"))
    assert named == Identity("t", session_key(SECRET, "t", "a"), cache_salt(SECRET, "t"))


def test_a_system_prompt_counts_too() -> None:
    sent = fields(messages=[SAID], system=[PART] * MANY)
    assert messages_of("messages", sent) == []


@pytest.mark.parametrize(
    "messages",
    [
        [{**SAID, "content": 'f(a, [b], {"c": 1}) \\ "' * 100_000}],
        [SAID, calling(json.dumps({"text": "a, [b], {c}" * 100_000})), SAID],
        [{"role": "user", "content": [PART] * 30_000}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": "A" * 20_000_000}]}],
    ],
    ids=["code", "code in arguments", "parts", "an image"],
)
def test_long_conversations_are_still_their_messages(messages: list[Json]) -> None:
    found = identified(fields(messages=messages), known=Knowing())
    assert found.session_key
    assert messages_of("chat", {"messages": msgspec.Raw(msgspec.json.encode(messages))}) == messages
