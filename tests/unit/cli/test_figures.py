"""What the demo counts, and when it fails."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contraflow.cli.demo.figures import Outcome, TurnFigures, common_prefix, pulled_share
from contraflow.cli.deployment.metrics import PromptTokens

GOOD = TurnFigures(
    number=2,
    router="router-1",
    prompt_ids=range(100),
    output_ids=[1, 2, 3],
    reference_ids=[1, 2, 3],
    finish_reason="tool_calls",
    measured=PromptTokens(pulled=60, local=30, computed=10, bytes=4096),
    reported={
        "decision": "PULL", "reason": "HANDLE_AVAILABLE",
        "pulled": "60", "local": "30", "computed": "10", "bytes": "4096",
    },
    ttft=0.2,
    share=0.95,
)  # fmt: skip
FIRST = replace(
    GOOD, number=1, measured=PromptTokens(computed=100), share=None,
    reported={"decision": "RECOMPUTE", "reason": "NO_HANDLE"},
)  # fmt: skip


@pytest.mark.parametrize(
    ("local", "pulled", "share"),
    [
        (96, 83, 79 / 80),  # all that has KV: the last token has none
        (0, 179, 79 / 80),  # P's own cache is empty
        (96, 0, 0.0),  # nothing was pulled
        (96, 4, 0.0),  # only the rest of the prompt
        (96, 44, 40 / 80),
        (128, 51, 51 / 80),  # P holds the first 28 tokens of the response itself
        (179, 50, 0.0),  # pulled, but behind the response
    ],
)
def test_share_of_a_response_of_80_tokens_after_a_prompt_of_100(
    local: int, pulled: int, share: float
) -> None:
    assert pulled_share(100, 80, local, pulled) == share


@given(*[st.integers(0, 500)] * 4)
def test_the_share_is_the_overlap_of_two_ranges(
    prompt: int, output: int, local: int, pulled: int
) -> None:
    response = set(range(prompt, prompt + output - 1))
    overlap = response & set(range(local, local + pulled))
    assert pulled_share(prompt, output, local, pulled) == (len(overlap) / output if output else 0)


def test_a_good_turn_has_no_problems() -> None:
    assert GOOD.problems() == []
    assert FIRST.problems() == []


@pytest.mark.parametrize("name", ["pulled", "local", "computed", "bytes"])
def test_every_figure_must_equal_the_connectors(name: str) -> None:
    turn = replace(GOOD, reported={**GOOD.reported, name: "1"})
    [problem] = turn.problems()
    assert problem.startswith(f"turn 2: {name}: ")
    assert "reported 1" in problem


@pytest.mark.parametrize("name", ["local", "computed", "bytes"])
def test_a_report_with_a_hole_is_a_problem(name: str) -> None:
    turn = replace(GOOD, reported={k: v for k, v in GOOD.reported.items() if k != name})
    assert [name in problem for problem in turn.problems()] == [True]


def test_tokens_that_nobody_reported_are_a_problem() -> None:
    turn = replace(FIRST, measured=PromptTokens(pulled=60, computed=40, bytes=9))
    assert len(turn.problems()) == 2


def test_metrics_that_do_not_account_for_the_prompt_are_a_problem() -> None:
    [problem] = replace(FIRST, measured=PromptTokens(computed=99)).problems()
    assert "99 tokens of a prompt of 100" in problem


def test_too_small_a_share_is_a_problem() -> None:
    [problem] = replace(GOOD, share=0.89).problems()
    assert "89%" in problem


@pytest.mark.parametrize(
    ("reference", "first"), [([1, 9, 3], 2), ([1, 2], 3), ([1, 2, 3, 4], 4), ([], 1)]
)
def test_any_other_token_is_a_problem(reference: list[int], first: int) -> None:
    [problem] = replace(GOOD, reference_ids=reference).problems()
    assert f"from token {first} on" in problem


def test_no_tokens_at_all_are_not_identical() -> None:
    assert not replace(GOOD, output_ids=[], reference_ids=[]).identical


def test_the_outcome_counts_identical_turns_and_tool_calls() -> None:
    bad = replace(GOOD, number=3, reference_ids=[7])
    outcome = Outcome((FIRST, GOOD, bad))
    assert outcome.verdict() == ("tokens identical to the single-engine reference: 2 of 3 turns")
    assert outcome.problems() == bad.problems()
    talk = replace(GOOD, finish_reason="length")
    assert Outcome((FIRST, talk)).problems() == ["fewer than two turns ended in tool calls"]


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_common_prefix(left: list[int], right: list[int]) -> None:
    same = common_prefix(left, right)
    assert left[:same] == right[:same]
    assert left[same : same + 1] != right[same : same + 1] or same == len(left) == len(right)
