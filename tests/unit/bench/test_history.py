"""Histories grow by what is said and by what was answered; branches leave their trunk alone."""

from __future__ import annotations

from random import Random

import pytest

from contraflow.bench.multiturn.history import Answer, ChatHistory, History, TokenHistory


def test_messages_take_turns_and_hold_the_answers() -> None:
    history = ChatHistory(tokens_per_word=2.0)
    history.say(20, Random(1))
    history.say(10, Random(2))
    history.hear(Answer("so be it"))
    history.say(6, Random(3))
    messages = history.body()["messages"]
    assert [one["role"] for one in messages] == ["user", "assistant", "user"]
    assert [len(one["content"].split()) for one in messages] == [15, 3, 3]
    assert messages[1]["content"] == "so be it"


def test_ids_are_exact() -> None:
    history = TokenHistory()
    history.say(20, Random(1))
    history.hear(Answer("", [7, 8, 9]))
    history.say(5, Random(2))
    ids = history.body()["prompt"]
    assert len(ids) == 28
    assert ids[20:23] == [7, 8, 9]


def test_ids_need_ids() -> None:
    with pytest.raises(ValueError, match="--api chat"):
        TokenHistory().hear(Answer("text"))


@pytest.mark.parametrize("history", [ChatHistory(), TokenHistory()])
def test_a_seed_decides_what_is_said_and_a_copy_is_a_branch(history: History) -> None:
    history.say(9, Random(4))
    before = repr(history.body())
    one, other = history.copy(), history.copy()
    for branch in (one, other):
        branch.hear(Answer("yes", [1]))
        branch.say(9, Random(5))
    assert repr(one.body()) == repr(other.body()) != before
    assert repr(history.body()) == before
