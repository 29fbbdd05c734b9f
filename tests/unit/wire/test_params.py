"""Transfer parameters as vLLM writes them, and as it never should."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from contraflow.v1 import transfer_params_pb2 as pb
from contraflow.wire.params import params_from_proto, params_to_proto

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
BY_VERSION: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted(FIXTURES.glob("vllm_*_kv_transfer_params.json"))
}


def carried(params: dict[str, Any]) -> dict[str, Any]:
    wire = params_to_proto(params).SerializeToString()
    return params_from_proto(pb.TransferParams.FromString(wire))


@pytest.mark.parametrize("version", BY_VERSION)
@pytest.mark.parametrize("sender", ["prefill", "decode"])
def test_scenario_13_what_vllm_returns_is_typed_and_comes_back_equal(
    version: str, sender: str
) -> None:
    params = BY_VERSION[version][sender]
    message = params_to_proto(params)
    untyped = {key for key, value in params.items() if value is None}
    assert set(message.extra_json) == untyped
    assert carried(params) == params


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"remote_block_ids": []},
        {"remote_block_ids": [[]]},
        {"remote_block_ids": [[], [1, 2**32 - 1]]},
        {"remote_block_ids": None},
        {"remote_block_ids": [[2**32]]},
        {"remote_block_ids": [[-1]]},
        {"remote_block_ids": [[True]]},
        {"remote_block_ids": [1, 2]},
        {"remote_block_ids": [[1], "2"]},
        {"remote_block_ids": {"0": [1]}},
        {"has_remote_block_ids": True},
        {"extra_json": {"a": "b"}},
        {"remote_port": True},
        {"remote_port": "5600"},
        {"remote_port": 5600.0},
        {"remote_port": -1},
        {"remote_port": 2**32},
        {"remote_num_tokens": 2**64 - 1},
        {"remote_num_tokens": 2**64},
        {"do_remote_prefill": 1, "do_remote_decode": 0},
        {"do_remote_prefill": None},
        {"remote_host": ""},
        {"remote_host": "\ud800"},
        {"remote_blocks_expiry_time": 12},
        {"remote_blocks_expiry_time": 1e-300},
        {"remote_blocks_expiry_time": math.inf},
        {"future": {"deep": [None, {"er": [1.5, "é\ud83d"]}]}},
        {"future": math.inf},
        {"": 1},
    ],
)
def test_scenario_13_every_shape_comes_back_equal(params: dict[str, Any]) -> None:
    assert json.dumps(carried(params), sort_keys=True) == json.dumps(params, sort_keys=True)


@pytest.mark.parametrize("key", ["remote_blocks_expiry_time", "future"])
def test_not_a_number_stays_not_a_number(key: str) -> None:
    assert math.isnan(carried({key: math.nan})[key])


def test_tuples_become_lists_as_in_json() -> None:
    assert carried({"remote_block_ids": ((1, 2), (3,))}) == {"remote_block_ids": [[1, 2], [3]]}


def test_scenario_13_private_keys_stay_with_the_engine() -> None:
    assert carried({"_remote_blocks_processed": True, "_": 1, "tp_size": 8}) == {"tp_size": 8}


@pytest.mark.parametrize("depth", [100, 900, 5000])
def test_what_is_nested_too_deeply_is_refused(depth: int) -> None:
    nested = pb.TransferParams(extra_json={"x": "[" * depth + "]" * depth})
    with pytest.raises(ValueError, match="nested too deeply"):
        params_from_proto(nested)
