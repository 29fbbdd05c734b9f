"""Workload files of vLLM's multi-turn benchmark."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from contraflow.bench.multiturn.vllm_file import WorkloadFileError, parse_workload, read_workload
from contraflow.bench.multiturn.workload import Turn

DOCUMENT: dict[str, Any] = {
    "filetype": "generate_conversations",
    "num_conversations": 3,
    "text_files": ["not-there.txt"],
    "prompt_input": {
        "num_turns": {"distribution": "constant", "value": 7},
        "common_prefix_num_tokens": {"distribution": "constant", "value": 64},
        "prefix_num_tokens": {"distribution": "lognormal", "average": 1000, "max": 2000},
        "num_tokens": {"distribution": "uniform", "min": 20, "max": 30},
    },
    "prompt_output": {"num_tokens": {"distribution": "poisson", "alpha": 9, "max": 12}},
}


def changed(path: str, value: Any) -> dict[str, Any]:
    document = deepcopy(DOCUMENT)
    *way, last = path.split(".")
    place = document
    for name in way:
        place = place[name]
    place[last] = value
    return document


def test_a_file_becomes_a_workload(tmp_path: Path) -> None:
    file = tmp_path / "generate_multi_turn.json"
    file.write_text(json.dumps(DOCUMENT))
    workload = read_workload(file, seed=1)
    assert workload == read_workload(file, seed=1)
    assert workload != read_workload(file, seed=2)
    assert (workload.name, workload.common_prefix_tokens) == (file.name, 64)
    assert len(workload.conversations) == 3
    for one in workload.conversations:
        assert len(one.turns) == 4  # seven messages, and the last question has its answer
        assert 0 < one.prefix_tokens <= 2000
        assert all(20 <= turn.input_tokens <= 30 for turn in one.turns)
        assert all(1 <= turn.output_tokens <= 12 for turn in one.turns)


def test_a_common_prefix_may_be_missing_and_a_turn_is_at_least_one() -> None:
    document = changed("prompt_input.num_turns.value", 0)
    del document["prompt_input"]["common_prefix_num_tokens"]
    document["prompt_output"]["num_tokens"] = {"distribution": "constant", "value": 0}
    document["prompt_input"]["num_tokens"] = {"distribution": "constant", "value": 5}
    workload = parse_workload(document, 0, "x")
    assert workload.common_prefix_tokens == 0
    assert {one.turns for one in workload.conversations} == {(Turn(5, 1),)}


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("filetype", "sharegpt", "`filetype`"),
        ("num_conversations", 0, "`num_conversations`"),
        ("prompt_output", None, "`prompt_output`"),
        ("prompt_input.num_tokens", {"distribution": "normal"}, "zipf or poisson"),
        ("prompt_input.num_tokens.min", 31, "`prompt_input.num_tokens.min` is above"),
        ("prompt_input.num_turns", {"distribution": "zipf", "alpha": 1}, "a number above 1"),
        ("prompt_input.prefix_num_tokens.median_ratio", 1, "median_ratio` must be below 1"),
        ("prompt_output.num_tokens.alpha", True, "`prompt_output.num_tokens.alpha`"),
    ],
)
def test_what_is_wrong_is_named(path: str, value: Any, told: str) -> None:
    with pytest.raises(WorkloadFileError) as caught:
        parse_workload(changed(path, value), 0, "x")
    assert told in str(caught.value)


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text("{")
    with pytest.raises(WorkloadFileError, match=r"x\.json is not JSON"):
        read_workload(file, 0)
