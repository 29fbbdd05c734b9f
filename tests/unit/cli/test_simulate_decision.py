"""``contraflow simulate --decision``: rows, JSON and the exit status."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pytest
from click.testing import CliRunner

from contraflow.cli import simulate_decision
from contraflow.cli.commands import commands
from contraflow.sim.decision import Condition, Exploring, Length, judge


@pytest.fixture(autouse=True)
def one_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate_decision, "conditions", lambda: [Condition("GLM-5-FP8", "idle")])
    monkeypatch.setattr(simulate_decision, "judge", partial(judge, turns=60, seeds=[1, 2]))


def test_each_length_is_a_row_and_what_failed_is_told_last() -> None:
    result = CliRunner().invoke(commands, ["simulate", "--decision"])
    lines = result.output.splitlines()
    assert sum(line.startswith("GLM-5-FP8") for line in lines) > 3
    assert lines[-1] == "failed: 0"
    assert result.exit_code == 0


def test_json_has_the_same() -> None:
    told = json.loads(CliRunner().invoke(commands, ["simulate", "--decision", "--json"]).output)
    *parts, whole = told["lengths"]
    assert whole["prompt_tokens_from"] is None
    assert whole["turns"] == sum(one["turns"] for one in parts) == 20
    assert {"64", "256", "1024", "4096", "always", "never"} == set(whole["rule_seconds"])
    assert [one["holds"] for one in told["exploring"]] == [True]


def test_it_fails_if_something_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(condition: Condition) -> tuple[list[Length], Exploring]:
        lengths, exploring = judge(condition, turns=60, seeds=[1])
        return lengths, replace(exploring, share=0.5)

    monkeypatch.setattr(simulate_decision, "judge", judged)
    result = CliRunner().invoke(commands, ["simulate", "--decision"])
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == "failed: 1"
    assert "FAILS" in result.output
