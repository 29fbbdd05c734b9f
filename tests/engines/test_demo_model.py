"""The demo's model: chat about it can be re-tokenised, and its replies hang on every token."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENGINE_PYTHON = Path(
    os.environ.get("CONTRAFLOW_ENGINE_PYTHON", ROOT / ".venv-engine" / "bin" / "python")
)
DEADLINE_SECONDS = 300

pytestmark = pytest.mark.engines


def run_in_engine_environment(script: Path, *args: Path) -> str:
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    done = subprocess.run(
        [ENGINE_PYTHON, script, *args],
        env=os.environ | offline,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def make_model(directory: Path) -> Path:
    run_in_engine_environment(ROOT / "deploy" / "demo" / "make_model.py", directory)
    return directory


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def facts(model: Path) -> dict[str, Any]:
    probe = Path(__file__).with_name("demo_model_probe.py")
    found: dict[str, Any] = json.loads(run_in_engine_environment(probe, model))
    return found


def test_text_and_ids_map_onto_each_other(facts: dict[str, Any]) -> None:
    assert facts["text"] == {
        "text_to_ids_to_text": True,
        "one_byte_one_token": True,
        "ids_to_text_to_ids": True,
    }


def test_prompt_and_reply_are_a_prefix_of_the_next_prompt(facts: dict[str, Any]) -> None:
    assert facts["history"] == dict.fromkeys(facts["history"], True)


def test_a_reply_changes_with_any_earlier_message(facts: dict[str, Any]) -> None:
    replies = facts["replies"]
    original = replies.pop("original")
    assert len(replies) == 15
    assert [name for name, reply in replies.items() if reply == original] == []


def test_only_printable_ascii_is_generated_and_nothing_that_opens_a_tag(
    facts: dict[str, Any],
) -> None:
    assert facts["emitted"].isascii()
    assert facts["emitted"].isprintable()
    assert "<" not in facts["emitted"]


def test_turns_end_by_the_stop_token(facts: dict[str, Any]) -> None:
    assert facts["turns_ended"] > 0


def test_the_model_is_the_same_each_time_it_is_made(model: Path, tmp_path: Path) -> None:
    again = make_model(tmp_path / "again")
    for name in ("model.safetensors", "tokenizer.json", "chat_template.jinja"):
        assert digest(again / name) == digest(model / name), name


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
