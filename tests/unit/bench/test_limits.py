"""Legs of real engines: what they must be, what their ratios must be, how both are told."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from contraflow.bench.limits import (
    LEGS,
    LIMITS,
    all_hold,
    document,
    judge,
    limits_table,
    markdown,
    problems,
    rows,
    ttft_table,
)
from contraflow.bench.multiturn.measured import Failure, Results, Sample, TurnId

GOOD = {"cache-off": 10.0, "one-way": 2.5, "bidirectional": 1.0, "own-cache": 0.9}
PULLED = {"cache-off": 0, "one-way": 0, "bidirectional": 300, "own-cache": 0}
LOCAL = {"cache-off": 0, "one-way": 2000, "bidirectional": 2000, "own-cache": 2500}


def measured(
    seconds: Mapping[str, float] = GOOD, pulled: Mapping[str, int] = PULLED,
    local: Mapping[str, int] = LOCAL,
) -> Results:  # fmt: skip
    results = Results()
    for conversation in range(3):
        for leg, ttft in seconds.items():
            first = Sample(leg, TurnId(conversation, 0, 1), 2000, 300, 99.0, 0.1, 100.0)
            report = {
                "pulled": str(pulled[leg]), "local": str(local[leg]),
                "prefill_s": str(ttft - 0.1), "pull_s": "0.05", "decision": "RECOMPUTE",
                "denial": "TIMEOUT",
            }  # fmt: skip
            later = (
                Sample(leg, TurnId(conversation, 0, n), 3000, 300, ttft + n, 0.1, 9.0, 0, report)
                for n in (2, 3)
            )
            results.samples += [first, *later]
    return results


def shifted(**seconds: float) -> Results:
    return measured({leg: value - 2.5 for leg, value in (GOOD | seconds).items()})


def test_the_first_turn_counts_for_nothing() -> None:
    ratios = [round(one.ratio.value, 3) for one in judge(measured(), seed=1)]
    assert ratios == [
        pytest.approx(12.5 / 3.5, abs=1e-3), pytest.approx(5 / 3.5, abs=1e-3),
        pytest.approx(3.5 / 3.4, abs=1e-3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "holds"),
    [
        ({}, [True, True, True]),
        ({"cache-off": 7.9}, [False, True, True]),
        ({"cache-off": 8.0}, [True, True, True]),
        ({"one-way": 1.99}, [True, False, True]),
        ({"one-way": 2.0}, [True, True, True]),
        ({"own-cache": 0.8}, [True, True, False]),
        ({"own-cache": 0.84}, [True, True, True]),
        ({"bidirectional": 1.3}, [False, False, False]),
    ],
    ids=str,
)
def test_each_limit_is_held_from_its_bound_on(seconds: dict[str, float], holds: list[bool]) -> None:
    results = shifted(**{"own-cache": 0.9, **seconds})
    judged = judge(results, seed=1)
    assert [one.holds for one in judged] == holds
    assert problems(results) == []
    assert all_hold(results, judged) == all(holds)
    marks = [line[-1] for line in limits_table(judged)[1]]
    assert marks == ["yes" if one else "NO" for one in holds]


@pytest.mark.parametrize(
    ("leg", "pulled", "local", "told"),
    [
        ("cache-off", 0, 32, "must not pull, and P must find nothing"),
        ("cache-off", 32, 0, "must not pull, and P must find nothing"),
        ("one-way", 32, 2000, "must not pull, and P must find something"),
        ("one-way", 0, 0, "must not pull, and P must find something"),
        ("bidirectional", 0, 2000, "must pull, and P must find something"),
        ("own-cache", 32, 2000, "must not pull, and P must find something"),
    ],
)
def test_a_leg_that_is_not_what_it_is_called_is_a_failure(
    leg: str, pulled: int, local: int, told: str
) -> None:
    results = measured(pulled={**PULLED, leg: pulled}, local={**LOCAL, leg: local})
    (problem,) = problems(results)
    assert problem.startswith(f"6 of 6 turns on {leg} are not")
    assert told in problem
    assert problem.endswith("told of them: RECOMPUTE TIMEOUT")
    assert not all_hold(results, judge(shifted(), seed=1))


def test_what_was_not_measured_does_not_hold() -> None:
    results = measured({leg: GOOD[leg] for leg in LEGS if leg != "own-cache"})
    judged = judge(results, seed=1)
    assert [one.limit for one in judged] == list(LIMITS[:2])
    assert problems(results) == ["own-cache has answered no second turn"]
    assert not all_hold(results, judged)
    assert judge(Results(), seed=1) == []


def test_a_router_that_tells_nothing_is_a_failure() -> None:
    results = Results([Sample(leg, TurnId(0, 0, 2), 9, 9, 1.0, 0.1, 2.0) for leg in LEGS])
    assert len(problems(results)) == len(LEGS)
    assert [(row.prefill, row.pull) for row in rows(results)] == [(None, None)] * len(LEGS)


def test_a_failed_turn_is_a_failure_of_the_run() -> None:
    results = shifted()
    results.failures.append(Failure("one-way", TurnId(1, 0, 3), "cut off", 0))
    assert problems(results) == ["turn 3 of conversation 2 failed on one-way: cut off"]
    assert not all_hold(results, judge(results, seed=1))


def test_tables_are_told_as_text_as_a_page_and_in_json() -> None:
    results = shifted()
    judged = judge(results, seed=1)
    columns, lines = ttft_table(results)
    assert len(lines) == len(LEGS)
    assert lines[0] == ("cache-off", "6", "3,000", "9.50", "9.50–10.50", "7.40", "0.05")
    page = markdown(results, judged).splitlines()
    assert page[0] == f"| {' | '.join(column.rstrip('#') for column in columns)} |"
    assert page[2] == "| cache-off | 6 | 3,000 | 9.50 | 9.50–10.50 | 7.40 | 0.05 |"
    assert page[-1] == "| bidirectional ÷ own-cache | 1.11 | 1.11–1.11 | ≤ 1.2 | yes |"
    made = document(results, judged)
    assert [one["holds"] for one in made["limits"]] == [True] * 3
    assert made["limits"][0]["limit"] == {
        "base": "cache-off", "leg": "bidirectional", "least": 8, "most": None,
    }  # fmt: skip
    assert made["later_turns"][2]["median"] == 0.5
    assert made["problems"] == []
