"""Commands whose output nobody takes, and that are interrupted."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import pytest
from tests.integration.operator_cli.world import World

COMMANDS = (
    "ps", "ps --json", "sessions", "handles", "handles --json", "handles --watch",
    "plan --session a --model m", "drain decode-1", "drain decode-1 --json",
)  # fmt: skip
CLOSED = ("sh", "-c", 'exec "$@" >&-', "sh")


async def ended(world: World, command: str, stdout: Any, *shell: str) -> tuple[int | None, str]:
    """Status and errors of a command."""
    process = await asyncio.create_subprocess_exec(
        *shell, sys.executable, "-m", "contraflow.cli.main", *command.split(),
        env=os.environ | world.environment, stdout=stdout, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(30):
        _, errors = await process.communicate()
    return process.returncode, errors.decode()


@pytest.mark.parametrize("command", COMMANDS)
async def test_output_that_can_not_be_written_is_no_success(world: World, command: str) -> None:
    world.decode.retain("a")
    await world.published(1)
    with open("/dev/full", "w") as full:  # noqa: ASYNC230 - a device
        status = await ended(world, command, full)
    assert status == (1, "contraflow: can not write the output: No space left on device\n")

    status = await ended(world, command, None, *CLOSED)
    assert status == (1, "contraflow: can not write the output: Bad file descriptor\n")

    reader, writer = os.pipe()
    os.close(reader)
    assert await ended(world, command, writer) == (1, "")
    os.close(writer)


async def test_a_command_that_waits_ends_by_ctrl_c_without_a_word(world: World) -> None:
    world.decode.retain("a")
    await world.published(1)
    waiting = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "contraflow.cli.main", "drain", "decode-1", "--wait",
        env=os.environ | world.environment,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert waiting.stderr is not None
    async with asyncio.timeout(30):
        assert b"1 handle left" in await waiting.stderr.readline()
        waiting.send_signal(signal.SIGINT)
        assert await waiting.communicate() == (b"", b"")
    assert waiting.returncode == 128 + signal.SIGINT
