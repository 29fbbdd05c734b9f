"""A chat stream as vLLM 0.33 writes it, through the router's filter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contraflow.web import SseFilter

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
PAYLOADS = (FIXTURES / "vllm_0_33_chat_stream.jsonl").read_text(encoding="utf-8").splitlines()
STREAM = "".join(f"data: {payload}\n\n" for payload in PAYLOADS).encode()
PARAMS: dict[str, Any] = json.loads(
    (FIXTURES / "vllm_0_33_kv_transfer_params.json").read_text(encoding="utf-8")
)["decode"]


def events(stream: bytes) -> list[Any]:
    payloads = [event.removeprefix("data: ") for event in stream.decode().split("\n\n")]
    assert payloads.pop() == ""
    assert payloads.pop() == "[DONE]"
    return [json.loads(payload) for payload in payloads]


@pytest.mark.parametrize("size", [1, 7, 100, 1000, len(STREAM)])
def test_the_parameters_are_taken_out_and_all_else_is_kept(size: int) -> None:
    sse = SseFilter()
    pieces = [sse.feed(STREAM[at : at + size]) for at in range(0, len(STREAM), size)]
    out = b"".join(pieces) + sse.finish()
    expected = [json.loads(payload) for payload in PAYLOADS[:-1]]
    for chunk in expected:
        chunk.pop("kv_transfer_params", None)
    assert events(out) == expected
    assert sse.transfer_params == PARAMS


def test_every_chunk_before_the_last_names_the_key_with_null() -> None:
    nulls = [json.loads(payload) for payload in PAYLOADS[1:-3]]
    assert [chunk["kv_transfer_params"] for chunk in nulls] == [None] * len(nulls)
