"""What the router sends to ``/v1/messages`` is what vLLM's own converter understands."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from typing import Any

import pytest
from tests.engines.test_vllm_next import DEADLINE_SECONDS, ENGINE_PYTHON, HERE, SOURCES

from contraflow.router.aborted import is_aborted
from contraflow.router.opening import Opening, opening_of
from contraflow.router.turn_body import traits_of
from contraflow.web import decode_body, parse_body, prefill_body

pytestmark = pytest.mark.engines

BODY = {
    "model": "tiny",
    "max_tokens": 4096,
    "stream": True,
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "What is q?"}]},
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": "call_1", "name": "look_up", "input": {"q": "é"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "call_1", "content": "42"}]},
    ],
    "tools": [{"name": "look_up", "input_schema": {"type": "object", "properties": {}}}],
    "thinking": {"type": "enabled", "budget_tokens": 2048},
    "stop_sequences": ["END"],
}  # fmt: skip
PREFILL = {"do_remote_decode": True, "do_remote_prefill": False, "contraflow": {"turn_id": "t"}}
DECODE = {"do_remote_decode": False, "do_remote_prefill": True, "remote_block_ids": [[1]]}
OVERRIDES = {"session_id": "f" * 32, "cache_salt": "0" * 32}
# What the legs may differ in: everything else shapes the prompt.
OF_ONE_LEG = {
    "kv_transfer_params", "max_completion_tokens", "max_tokens", "stream", "stream_options",
}  # fmt: skip


@cache
def probed(version: str) -> dict[str, Any]:
    sources = SOURCES[version]
    assert sources is None or (sources / "vllm").is_dir(), f"no {sources}: run `make env-next`"
    fields = parse_body(json.dumps(BODY).encode()).fields
    legs = [prefill_body(fields, PREFILL, OVERRIDES), decode_body(fields, DECODE, OVERRIDES)]
    done = subprocess.run(
        [ENGINE_PYTHON, HERE / "vllm_messages_probe.py"],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(sources or "")},
        input=json.dumps([json.loads(leg) for leg in legs]),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("version", SOURCES)
def test_both_legs_ask_for_the_same_prompt_with_parameters_and_salt(version: str) -> None:
    prefill, decode = probed(version)["asked"]
    assert prefill["kv_transfer_params"] == PREFILL
    assert decode["kv_transfer_params"] == DECODE
    assert prefill["cache_salt"] == OVERRIDES["cache_salt"]
    assert (prefill["max_completion_tokens"], decode["max_completion_tokens"]) == (1, 4096)
    assert "stream" not in prefill
    assert decode["stream"] is True
    for name in OF_ONE_LEG:
        prefill.pop(name, None)
        decode.pop(name, None)
    assert prefill == decode
    assert [message["role"] for message in decode["messages"]] == [
        "system", "user", "assistant", "tool",
    ]  # fmt: skip


@pytest.mark.parametrize("version", SOURCES)
def test_the_answer_to_a_prefill_leg_holds_its_parameters(version: str) -> None:
    assert probed(version)["answered"]["kv_transfer_params"] == {"remote_engine_id": "p"}


@pytest.mark.parametrize("version", SOURCES)
def test_a_forced_tool_use_that_is_cut_can_not_be_answered(version: str) -> None:
    assert probed(version)["cut"] == {"error": "JSONDecodeError"}
    forced = {**BODY, "tool_choice": {"type": "tool", "name": "look_up"}}
    assert not traits_of(parse_body(json.dumps(forced).encode())).two_legged


@pytest.mark.parametrize("version", SOURCES)
def test_a_request_that_is_aborted_is_known_by_what_is_missing(version: str) -> None:
    found = probed(version)
    assert is_aborted(json.dumps(found["aborted"]).encode())
    assert not is_aborted(json.dumps(found["answered"]).encode())
    assert opening_of("".join(found["aborted_stream"]).encode()) is Opening.ABORTED
