"""``contraflow simulate``: rows, JSON and the exit status."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from contraflow.cli import simulate, simulate_loads
from contraflow.cli.commands import commands
from contraflow.sim.reference import LONG


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


@pytest.mark.parametrize(
    "options", [[], ["--reference", "--loads"], ["--loads", "--decision"], ["--nodes"]]
)
def test_one_of_them_is_to_be_said(options: list[str]) -> None:
    assert CliRunner().invoke(commands, ["simulate", *options]).exit_code == 2


@pytest.fixture(scope="module")
def loads() -> list[dict[str, Any]]:
    result = CliRunner().invoke(commands, ["simulate", "--loads", "--seed", "3", "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert told["seed"] == 3
    found: list[dict[str, Any]] = told["loads"]
    return found


def test_each_load_is_told_one_way_and_with_pulls(loads: list[dict[str, Any]]) -> None:
    one_way, pulling = loads[::2], loads[1::2]
    assert len(one_way) == len(pulling) == 16
    for off, on in zip(one_way, pulling, strict=True):
        assert (off["bidirectional"], on["bidirectional"]) == (False, True)
        same = ("model", "load", "clients", "prefill_caching", "turns")
        assert [off[name] for name in same] == [on[name] for name in same]
        assert on["held_byte_seconds"] > off["held_byte_seconds"] == 0


def test_several_nodes_many_clients_and_caching_are_among_them(
    loads: list[dict[str, Any]],
) -> None:
    for name in ("prefill_caching", "prefill_nodes", "decode_nodes", "clients", "model"):
        assert len({load[name] for load in loads}) > 1


def test_loads_are_a_table_without_json(monkeypatch: pytest.MonkeyPatch) -> None:
    few = [point for point in LONG if point.model.name == "Qwen3-32B"]
    monkeypatch.setattr(simulate_loads, "LONG", few)
    result = CliRunner().invoke(commands, ["simulate", "--loads"])
    lines = result.output.splitlines()
    assert lines[0].split()[:4] == ["model", "load", "clients", "pulls"]
    assert sum(line.startswith("Qwen3-32B") for line in lines) == 16
    assert "--reference" in lines[-1]
