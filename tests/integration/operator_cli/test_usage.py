"""What all commands say of wrong arguments, and of servers that are not there or not theirs."""

from __future__ import annotations

import asyncio

import pytest
from click.testing import CliRunner
from tests.integration.operator_cli.world import World
from tests.support.directory_content import free_address

from contraflow.cli.commands import commands

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("command", ["ps", "sessions", "handles", "drain x", "release a/1"])
async def test_without_a_directory_one_line_says_what_to_do(command: str) -> None:
    result = await asyncio.to_thread(
        CliRunner().invoke, commands, [*command.split(), "--directory", str(free_address())]
    )
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "--directory or CONTRAFLOW_DIRECTORY" in result.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("ps", "--directory", "nonsense"),
        ("plan", "--router", "::1:7000"),
        ("drain",),
        ("drain", "x", "--undo", "--wait"),
        ("drain", "x", "--undo", "--release"),
        ("release",),
        ("release", "a/1", "--engine", "a"),
        ("release", "no-slash"),
        ("plan", "--request", "/no/such/file"),
        ("sessions", "--bogus"),
    ],
)
def test_wrong_usage_is_exit_status_2(args: tuple[str, ...]) -> None:
    assert CliRunner().invoke(commands, args).exit_code == 2


async def test_a_server_of_another_kind_is_called_so(world: World) -> None:
    router = world.environment["CONTRAFLOW_ROUTER"]
    assert "does not speak as a directory" in await world.failure("ps", "--directory", router)
