"""What is sent on each leg, and what is stripped."""

from __future__ import annotations

from typing import Any

import pytest

from contraflow.core.transfer_params import (
    REMOTE_KEYS,
    are_nested_too_deeply,
    for_decode,
    for_plain_decode,
    for_plain_prefill,
    for_pulling_prefill,
    has_remote_blocks,
    without_private,
)

OWNERS: dict[str, Any] = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[1, 2]],
    "remote_engine_id": "d1",
    "remote_request_id": "r",
    "remote_host": "fd00::1",
    "remote_port": 5600,
    "tp_size": 8,
    "future": None,
    "_remote_blocks_processed": True,
}


def test_a_pulling_prefill_gets_the_owners_with_its_own_flags() -> None:
    sent = for_pulling_prefill(OWNERS)
    flags = {"do_remote_decode": True, "do_remote_prefill": False}
    assert sent == {**without_private(OWNERS), **flags}
    assert OWNERS["do_remote_prefill"] is True


def test_decode_gets_what_prefill_returned_less_what_is_private() -> None:
    assert for_decode(OWNERS) == {k: v for k, v in OWNERS.items() if k[0] != "_"}


def test_the_plain_legs_pull_nothing_and_are_not_empty() -> None:
    for plain in (for_plain_prefill(), for_plain_decode()):
        assert plain
        assert not has_remote_blocks(plain)
    assert for_plain_prefill()["do_remote_decode"]
    assert not for_plain_decode()["do_remote_decode"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("remote_block_ids", []),
        ("remote_block_ids", [[]]),
        ("remote_block_ids", [["1"]]),
        ("remote_block_ids", [1]),
        ("remote_block_ids", "12"),
        ("remote_engine_id", ["d1"]),
        ("remote_request_id", 7),
        ("remote_host", {}),
        ("remote_port", "5600"),
        ("remote_port", 0),
        ("remote_port", 2**16),
        ("remote_port", True),
        ("tp_size", "8"),
        ("tp_size", 0),
        ("dcp_size", None),
        ("pp_size", 1.0),
    ],
)
def test_what_an_engine_would_die_of_is_nothing_to_pull(key: str, value: object) -> None:
    assert not has_remote_blocks({**OWNERS, key: value})


def test_a_group_may_be_empty_and_sizes_may_be_left_out() -> None:
    assert has_remote_blocks({**OWNERS, "remote_block_ids": ((1,), ())})
    assert has_remote_blocks({k: v for k, v in OWNERS.items() if k != "tp_size"})


def test_parameters_of_engines_are_not_nested_deeply() -> None:
    assert not are_nested_too_deeply(OWNERS)
    nested: Any = 1
    for _ in range(100):
        nested = {"x": [nested]}
    assert are_nested_too_deeply({"x": nested})


@pytest.mark.parametrize("key", REMOTE_KEYS)
def test_a_pull_needs_every_key(key: str) -> None:
    assert has_remote_blocks(OWNERS)
    assert not has_remote_blocks({k: v for k, v in OWNERS.items() if k != key})
    assert not has_remote_blocks({**OWNERS, key: None})
