"""Help: every command shows how it is used, and what it shows is accepted."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from contraflow.cli import operate
from contraflow.cli.commands import commands

CONTEXT = click.Context(commands)
COMMANDS = commands.list_commands(CONTEXT)


def examples(command: click.Command) -> list[list[str]]:
    """The words of each example in a command's help, the program's name left out."""
    text = (command.help or "").partition("Example")[2].replace("\\\n", " ")
    shown: list[list[str]] = []
    for paragraph in re.split(r"\n\s*\n", text):
        for example in re.split(r"^\s*contraflow ", paragraph, flags=re.MULTILINE)[1:]:
            # What stands far to the right of the first line is a remark.
            first, *rest = example.splitlines()
            shown.append(shlex.split("\n".join([re.split(r"\s{3,}", first)[0], *rest])))
    return shown


def command_of(name: str) -> click.Command:
    command = commands.get_command(CONTEXT, name)
    assert command is not None
    return command


def test_the_operators_commands_are_there() -> None:
    assert set(operate.COMMANDS) <= set(COMMANDS)
    assert commands.get_command(CONTEXT, "nonsense") is None


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_every_help_shows_examples_and_each_of_them_parses(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "body.json").write_text("{}")
    shown = examples(command_of(name) if name else commands)
    assert shown
    for first, *rest in shown:
        assert name in ("", first)
        command_of(first).make_context(first, rest).close()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_printed(name: str) -> None:
    result = CliRunner().invoke(commands, [name, "--help"])
    assert result.exit_code == 0
    assert "Example" in result.output
