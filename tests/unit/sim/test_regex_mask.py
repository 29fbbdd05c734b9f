"""Walks through masks match the expression, and all of its language that is ASCII is reached."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from contraflow.cli.demo.script import FIVE_TURNS
from contraflow.sim.regex_mask import UnsupportedRegex, choice_mask, regex_mask
from contraflow.sim.vocab import EOS

atoms = st.sampled_from(
    ["a", "Z", "0", " ", r"\.", r"\{", r"\n", r"\d", r"\w", r"\S", "[a-c]", "[^a-y]", "[_x1-3]",
     "[^\\d]", ".", "<", "é", r"\s"]
)  # fmt: skip
repeats = st.sampled_from(["?", "{2}", "{0,2}", "{1,3}", "{2,}", "*", "+", "+?"])
expressions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda found: f"({'|'.join(found)})"),
        st.builds("(?:{}){}".format, inner, repeats),
    ),
    max_leaves=8,
)  # fmt: skip


def walk(expression: str, data: st.DataObject, limit: int = 60) -> str | None:
    """A text that the mask leads to; None if it has not ended within ``limit`` bytes."""
    mask, generated = regex_mask(expression), list[int]()
    while allowed := mask(generated):
        token = data.draw(st.sampled_from(sorted(allowed)))
        if token == EOS or len(generated) == limit:
            break
        generated.append(token)
    else:
        token = EOS
    return bytes(generated).decode() if token == EOS else None


@given(expressions, st.data())
def test_a_walk_ends_only_where_the_whole_text_matches(
    expression: str, data: st.DataObject
) -> None:
    text = walk(expression, data)
    assume(text is not None)
    assert text is not None
    assert re.fullmatch(expression, text)


@pytest.mark.parametrize("turn", [turn.forced for turn in FIVE_TURNS if turn.forced])
@given(data=st.data())
def test_the_demos_forced_turns_can_be_walked(turn: str, data: st.DataObject) -> None:
    text = walk(turn, data, limit=300)
    assert text is not None
    assert re.fullmatch(turn, text)


def test_the_end_is_an_empty_set_and_eos_stands_where_the_match_may_go_on() -> None:
    mask = regex_mask("ab?")
    assert mask([]) == {ord("a")}
    assert mask([ord("a")]) == {ord("b"), EOS}
    assert mask([ord("a"), ord("b")]) == set()


def test_nothing_follows_a_token_that_was_not_allowed() -> None:
    assert regex_mask("ab")([ord("b")]) == set()
    assert regex_mask("a*")([EOS]) == set()


def test_a_mask_follows_an_answer_that_begins_again() -> None:
    mask = regex_mask("abc")
    assert mask([ord("a"), ord("b")]) == {ord("c")}
    assert mask([]) == {ord("a")}


def test_masks_of_one_expression_do_not_share_their_place() -> None:
    first, second = regex_mask("xy"), regex_mask("xy")
    assert first([ord("x")]) == {ord("y")}
    assert second([]) == {ord("x")}


def test_a_choice_is_one_of_the_texts() -> None:
    mask = choice_mask(["yes (a)", "no"])
    assert mask([]) == {ord("y"), ord("n")}
    assert mask(list(b"yes (a")) == {ord(")")}
    assert mask(list(b"no")) == set()


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("(", "not valid"),
        ("^a", "at"),
        ("a(?=b)", "assert"),
        (r"(a)\1", "groupref"),
        ("(?i)a", "flags"),
        ("(?i:a)", "flags"),
        ("a++", "possessive"),
        ("[à-é]", "no ASCII"),
        ("[^ -~]", "no ASCII"),
        ("(a{400}){400}", "states"),
    ],
)
def test_what_no_mask_can_be_made_of_is_named(expression: str, says: str) -> None:
    with pytest.raises(UnsupportedRegex, match=says):
        regex_mask(expression)
