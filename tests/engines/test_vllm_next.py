"""The connector's scheduler half on vLLM's own scheduler class, in both releases we support."""

from __future__ import annotations

import json
import os
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from contraflow.core.transfer_params import HOLD_EXTENSION, HOLD_UNTIL, OURS

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
FIXTURES = ROOT / "tests" / "fixtures"
ENGINE_PYTHON = Path(
    os.environ.get("CONTRAFLOW_ENGINE_PYTHON", ROOT / ".venv-engine" / "bin" / "python")
)
SOURCES = {"0.32": None, "0.33": ROOT / ".venv-vllm-next"}
DEADLINE_SECONDS = 300
CASES = [
    name
    for file in sorted(HERE.glob("vllm_scheduler/cases_*.py"))
    for name in re.findall(r"^@case\ndef (\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
]

pytestmark = pytest.mark.engines


def run(version: str, script: str, *args: Path) -> str:
    """The script's output, on the sources of a release; they come from ``make env-next``."""
    sources = SOURCES[version]
    assert sources is None or (sources / "vllm").is_dir(), f"no {sources}: run `make env-next`"
    path = os.pathsep.join(map(str, [sources, ROOT] if sources else [ROOT]))
    env = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": path}
    done = subprocess.run(
        [ENGINE_PYTHON, HERE / script, *args],
        env=env,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def probed(version: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(version, "vllm_scheduler_probe.py").splitlines()[-1])
    return found


def fixture(version: str, name: str) -> Path:
    return FIXTURES / f"vllm_{version.replace('.', '_')}_{name}"


@pytest.mark.parametrize("version", SOURCES)
def test_the_sources_are_of_that_release(version: str) -> None:
    assert probed(version)["version"].startswith(f"{version}.")


@pytest.mark.parametrize("version", SOURCES)
@pytest.mark.parametrize("case", CASES)
def test_scheduler(version: str, case: str) -> None:
    outcome = probed(version)["cases"][case]
    assert outcome == "ok", outcome


@pytest.mark.parametrize("version", SOURCES)
@pytest.mark.parametrize("sender", ["prefill", "decode"])
def test_the_fixture_has_the_keys_and_types_that_vllm_returns(version: str, sender: str) -> None:
    returned = probed(version)["returned"][sender]
    for ours in (OURS, HOLD_UNTIL, HOLD_EXTENSION):
        returned.pop(ours, None)
    text = fixture(version, "kv_transfer_params.json").read_text(encoding="utf-8")
    expected = json.loads(text)[sender]
    assert {key: type(value) for key, value in returned.items()} == {
        key: type(value) for key, value in expected.items()
    }


def test_the_stream_fixture_is_what_vllm_writes() -> None:
    stream = fixture("0.33", "chat_stream.jsonl").read_text(encoding="utf-8")
    params = fixture("0.33", "kv_transfer_params.json")
    assert run("0.33", "vllm_stream_probe.py", params) == stream
