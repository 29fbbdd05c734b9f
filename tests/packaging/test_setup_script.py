"""The script that makes the environments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FUNCTIONS = "/^say()/p; /^die()/p; /^find_python()/,/^}/p"
_ASK = f"source <(sed -n '{_FUNCTIONS}' deploy/setup.sh); find_python"


def python_for(path: str, python: str = "") -> str:
    """The interpreter that the script would make environments with."""
    env = {**os.environ, "PATH": path, "PYTHON": python}
    found = subprocess.run(
        ["bash", "-c", _ASK],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return found.stdout.strip()


def test_an_active_environment_is_not_made_from_itself(tmp_path: Path) -> None:
    subprocess.run(
        [sys._base_executable, "-m", "venv", "--without-pip", tmp_path / "env"],  # type: ignore[attr-defined]
        check=True,
        timeout=60,
    )
    plain = python_for(os.environ["PATH"], sys._base_executable)  # type: ignore[attr-defined]
    active = python_for(f"{tmp_path}/env/bin:{os.environ['PATH']}", "python3")
    assert os.path.realpath(active) == os.path.realpath(plain)
    assert not active.startswith(str(tmp_path))
