"""The scripted conversation is one that a client could have."""

from __future__ import annotations

import json
import re

import pytest

from contraflow.cli.demo.script import FIVE_TURNS, TOOLS, Conversation, ScriptedTurn

FORCED = [turn for turn in FIVE_TURNS if turn.forced]
_CALL = re.compile(r"<tool_call>\n(.*)\n</tool_call>")


def test_two_routers_and_a_tool_result_on_each() -> None:
    assert [turn.router for turn in FIVE_TURNS] == [0, 0, 1, 1, 1]
    assert {turn.router for turn in FIVE_TURNS if turn.from_tool} == {0, 1}
    assert len(FORCED) >= 2


@pytest.mark.parametrize("turn", FORCED)
def test_forced_calls_name_a_known_tool_and_fit_it(turn: ScriptedTurn) -> None:
    # An example: the first alternative of groups, and letters for classes.
    text = re.sub(r"\(([a-z]+)\|[a-z|]+\)", r"\1", turn.forced)
    text = re.sub(r"\[a-z\]\{(\d+),\d+\}", lambda found: "x" * int(found[1]), text)
    text = text.replace(r"\{", "{").replace(r"\}", "}").replace(r"\n", "\n")
    assert re.fullmatch(turn.forced, text)
    found = _CALL.fullmatch(text)
    assert found
    call = json.loads(found[1])
    [tool] = [tool for tool in TOOLS if tool["function"]["name"] == call["name"]]
    assert set(call["arguments"]) == set(tool["function"]["parameters"]["required"])


def test_a_tools_answer_carries_the_id_of_the_call() -> None:
    conversation = Conversation()
    conversation.say(ScriptedTurn(0, "hello"))
    conversation.hear({"role": "assistant", "content": None, "tool_calls": [{"id": "call-1"}]})
    conversation.say(ScriptedTurn(0, "result", from_tool=True))
    assert [message["role"] for message in conversation.messages] == [
        "system", "user", "assistant", "tool",
    ]  # fmt: skip
    assert conversation.messages[-1] == {
        "role": "tool", "tool_call_id": "call-1", "content": "result",
    }  # fmt: skip


def test_a_tools_answer_without_a_call_is_an_error() -> None:
    conversation = Conversation()
    conversation.hear({"role": "assistant", "content": "no call"})
    with pytest.raises(ValueError, match="call a tool"):
        conversation.say(ScriptedTurn(0, "result", from_tool=True))


def test_sampling_is_greedy_and_forced_only_where_said() -> None:
    assert ScriptedTurn(0, "").sampling() == {"temperature": 0, "max_tokens": 160}
    assert ScriptedTurn(0, "", min_tokens=4).sampling()["min_tokens"] == 4
    assert ScriptedTurn(0, "", forced="x").sampling()["structured_outputs"] == {"regex": "x"}
