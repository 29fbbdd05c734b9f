"""Answers of real engines are compared token by token, but for what rounding decides."""

from __future__ import annotations

import pytest
from tests.support.expected import expected

LIKELY = [{"5": -0.1, "6": -3.0}, {"7": -0.841466, "8": -0.841474}, {"9": -0.5, "4": -0.7}]


def of(*ids: int) -> object:
    tops = [{f"token_id:{token}": likely for token, likely in top.items()} for top in LIKELY]
    return expected({"token_ids": list(ids), "logprobs": {"top_logprobs": tops}})


@pytest.mark.parametrize("answer", [[5, 7, 9], [5, 8, 9], [5, 8, 1]])
def test_what_may_be_said(answer: list[int]) -> None:
    assert answer == of(5, 7, 9)
    assert of(5, 7, 9) == answer
    assert (answer != of(5, 7, 9)) is False


@pytest.mark.parametrize(
    "answer", [[6, 7, 9], [5, 6, 9], [5, 7, 4], [5, 7], [5, 7, 9, 9], [6, 8, 9]]
)
def test_what_is_wrong(answer: list[int]) -> None:
    assert answer != of(5, 7, 9)
    assert of(5, 7, 9) != answer
    assert (answer == of(5, 7, 9)) is False
