"""How the program ends where nobody takes its output, or Ctrl-C comes before it has begun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

PROGRAM = (sys.executable, "-m", "contraflow.cli.main")
PRINTING = ("--version", "--help", "demo --help", "demo --engine sim", "up --engine sim")
WAITS = 'print("loading", flush=True)\nimport time\ntime.sleep(600)\n'


def run(command: str, stdout: Any, *shell: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """The program, to its end."""
    return subprocess.run(
        [*shell, *PROGRAM, *command.split()], stdout=stdout, stderr=subprocess.PIPE, text=True,
        timeout=90, check=False, **more,
    )  # fmt: skip


@pytest.fixture
def no_reader() -> Iterator[int]:
    """A pipe whose reader has gone, as after ``| head``."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", PRINTING)
def test_output_that_a_full_disk_refuses_is_one_line_and_status_1(
    command: str, unbuffered: str
) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        ended = run(command, full, env=environment)
    assert ended.returncode == 1
    assert ended.stderr == "contraflow: can not write the output: No space left on device\n"


@pytest.mark.parametrize("command", PRINTING)
def test_a_reader_who_has_gone_ends_it_without_a_word(command: str, no_reader: int) -> None:
    ended = run(command, no_reader)
    assert (ended.returncode, ended.stderr) == (1, "")


@pytest.mark.parametrize("command", PRINTING)
def test_closed_output_is_no_success(command: str) -> None:
    ended = run(command, None, "sh", "-c", 'exec "$@" >&-', "sh")
    assert ended.returncode == 1
    assert ended.stderr == "contraflow: can not write the output: Bad file descriptor\n"


@pytest.mark.parametrize(
    ("command", "module"),
    [("--version", "click"), ("demo --engine sim", "rich"), ("up --engine sim", "grpc"),
     ("ps", "grpc"), ("router --config x", "structlog"), ("engine-sim --model m", "structlog")],
)  # fmt: skip
def test_ctrl_c_while_it_is_being_loaded_is_quiet_and_status_130(
    command: str, module: str, tmp_path: Path
) -> None:
    (tmp_path / f"{module}.py").write_text(WAITS)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        [*PROGRAM, *command.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment,
    ) as loading:  # fmt: skip
        try:
            assert loading.stdout is not None
            assert loading.stdout.readline() == "loading\n"
            loading.send_signal(signal.SIGINT)
            _, errors = loading.communicate(timeout=30)
        finally:
            loading.kill()
    assert (loading.returncode, errors) == (130, "")
