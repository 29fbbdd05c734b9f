"""``contraflow simulate``: rows, JSON and the exit status."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from contraflow.cli import simulate
from contraflow.cli.commands import commands


def test_each_end_point_is_a_row_and_how_many_are_off_is_told_last() -> None:
    result = CliRunner().invoke(commands, ["simulate", "--reference"])
    assert result.exit_code == 1, result.output
    lines = result.output.splitlines()
    for model in ("Qwen3-32B", "GLM-5-FP8"):
        rows = [line for line in lines if line.startswith(model)]
        assert [sum(word in row for row in rows) for word in (" fitted ", " predicted ")] == [3, 3]
    assert lines[-1].startswith("beyond 15%: 4 of 12, ")


def test_json_has_the_same() -> None:
    told = json.loads(CliRunner().invoke(commands, ["simulate", "--reference", "--json"]).output)
    points = told["end_points"]
    off = [p for p in points if abs(p["deviation"]) > 0.15]
    assert len(points) == 12
    assert {(p["fitted"], p["quantity"]) for p in off} == {(False, "ON"), (False, "TRANSFER")}
    assert told["fitted"]["descriptor_seconds"] > 0


def test_it_succeeds_if_none_is_too_far_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate, "_ALLOWED", 0.5)
    assert CliRunner().invoke(commands, ["simulate", "--reference"]).exit_code == 0


def test_there_is_nothing_else_to_simulate() -> None:
    assert CliRunner().invoke(commands, ["simulate"]).exit_code == 2
