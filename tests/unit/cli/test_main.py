"""The command line itself."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import contraflow
from contraflow.cli.commands import commands

COMMANDS = ("directory", "agent", "router", "engine-sim", "up", "demo", "wait-engine")


def test_version() -> None:
    result = CliRunner().invoke(commands, ["--version"])
    assert (result.exit_code, result.output) == (
        0,
        f"contraflow, version {contraflow.__version__}\n",
    )


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_help_has_examples(command: tuple[str, ...]) -> None:
    result = CliRunner().invoke(commands, [*command, "--help"])
    assert result.exit_code == 0
    assert f"contraflow {' '.join(command)}".strip() in result.output.partition("Example")[2]


@pytest.mark.parametrize("service", ["directory", "agent", "router"])
@pytest.mark.parametrize(("text", "named"), [("nonsense = 1\n", "nonsense"), ("= =", "line 1")])
def test_wrong_configuration_is_one_line_and_exit_status_2(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], service: str, text: str, named: str
) -> None:
    path = tmp_path / "it.toml"
    path.write_text(text)
    with pytest.raises(SystemExit) as caught:
        commands([service, "--config", str(path)])
    error = capfd.readouterr().err
    assert caught.value.code == 2
    assert error.count("\n") == 1
    assert named in error


def test_a_service_needs_a_file() -> None:
    assert CliRunner().invoke(commands, ["router"]).exit_code == 2


def test_up_names_a_port_in_use_before_anything_starts(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONTRAFLOW_ENGINE_PYTHON", sys.executable)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit) as caught:
            commands(["up", "--port", str(port)])
    assert caught.value.code == 2
    error = capfd.readouterr().err
    assert error == f"contraflow: 127.0.0.1:{port} is in use by another process\n"


def test_up_says_what_setup_is_missing(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONTRAFLOW_ENGINE_PYTHON", "/no/such/python")
    with pytest.raises(SystemExit) as caught:
        commands(["up"])
    assert caught.value.code == 1
    assert "make setup" in capfd.readouterr().err
