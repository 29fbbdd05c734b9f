"""Means and ratios with their intervals, and how samples are grouped."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from contraflow.bench.multiturn.measured import Failure, Results, Sample, TurnId
from contraflow.bench.multiturn.report import (
    ALL,
    LATER,
    comparisons,
    document,
    length_scope,
    rows,
)
from contraflow.bench.multiturn.statistics import Estimate, mean, ratio


def test_a_mean_is_over_samples_and_its_interval_over_groups() -> None:
    assert mean([[1.0, 2.0, 3.0], [6.0]], seed=1).value == 3.0
    assert mean([[5.0, 7.0]], seed=1) == Estimate(6.0)
    assert mean([[2.0], [2.0], [2.0]], seed=1) == Estimate(2.0, 2.0, 2.0)


def test_equal_seeds_give_equal_intervals() -> None:
    groups = [[float(n), float(n * n)] for n in range(8)]
    assert mean(groups, seed=3) == mean(groups, seed=3)


def test_an_interval_is_about_two_standard_errors_to_each_side() -> None:
    random = Random(2)
    groups = [[random.gauss(10.0, 2.0)] for _ in range(100)]
    found = mean(groups, seed=1)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high
    assert found.high - found.low == pytest.approx(2 * 1.96 * 2.0 / 10, rel=0.25)


def test_a_ratio_is_of_the_sums() -> None:
    found = ratio([(4.0, 2.0), (2.0, 1.0)], seed=1)
    assert found == Estimate(2.0, 2.0, 2.0)


def sample(
    leg: str, conversation: int, turn: int, ttft: float, prompt: int | None = 1000, **report: str
) -> Sample:
    return Sample(leg, TurnId(conversation, 0, turn), prompt, 11, ttft, 0.1, ttft + 1, None, report)


@pytest.mark.parametrize(
    ("tokens", "label"),
    [(0, "0–512 tokens"), (511, "0–512 tokens"), (512, "512–1k tokens"), (4096, "4k–6k tokens"),
     (200_000, "128k and more tokens")],
)  # fmt: skip
def test_buckets_include_their_lower_edge(tokens: int, label: str) -> None:
    assert length_scope(tokens).label == label


def test_rows_are_by_scope_and_leg_and_tell_only_what_was_told() -> None:
    results = Results(
        [
            sample("b", 0, 1, 0.2, pulled="30", local="x"),
            sample("b", 0, 2, 0.4, pulled="50"),
            sample("a", 0, 1, 0.6, None),
        ]
    )
    made = rows(results, ["a", "b"], seed=1)
    assert [(row.leg, row.scope.label, row.turns) for row in made] == [
        ("a", "all turns", 1), ("b", "all turns", 2), ("b", "turns from 2 on", 1),
        ("a", "turn 1", 1), ("b", "turn 1", 1), ("b", "turn 2", 1), ("b", "512–1k tokens", 2),
    ]  # fmt: skip
    assert made[1].parts == {"pulled": 40.0}
    assert made[1].ttft.mean.value == pytest.approx(0.3)
    assert (made[0].parts, made[0].prompt_tokens) == ({}, None)


def test_seconds_of_prefill_are_means_over_the_turns_that_told_and_no_pull_took_none() -> None:
    told = [{"prefill_s": "0.6", "pull_s": "0.2"}, {"prefill_s": "0.2"}, {"pulled": "7"}]
    results = Results(
        [replace(sample("a", 0, n, 0.9), report=one) for n, one in enumerate(told, 1)]
    )
    whole = rows(results, ["a"], seed=1)[0]
    assert whole.prefill == pytest.approx(0.4)
    assert whole.pull == pytest.approx(0.1)
    last = next(row for row in rows(results, ["a"], seed=1) if row.scope.label == "turn 3")
    assert (last.prefill, last.pull) == (None, None)


def test_legs_are_compared_over_the_turns_that_both_have_answered() -> None:
    results = Results(
        [
            sample("a", 0, 1, 0.9), sample("b", 0, 1, 0.3),
            sample("a", 0, 2, 0.8), sample("b", 0, 2, 0.2),
            sample("a", 1, 1, 99.0), sample("b", 2, 1, 0.001),
        ],
        [Failure("b", TurnId(1, 0, 1), "gone", 1)],
    )  # fmt: skip
    found = {one.scope: one for one in comparisons(results, ["a", "b"], seed=1)}
    assert (found[ALL].turns, found[LATER].turns) == (2, 1)
    assert found[ALL].ttft.value == pytest.approx(1.7 / 0.5)
    assert found[LATER].ttft.value == pytest.approx(4.0)
    assert document(results, ["a", "b"], seed=1)["failed"]["b"] == {
        "answered": 3, "failed": 1, "not_sent": 1,
    }  # fmt: skip
