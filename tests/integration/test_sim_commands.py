"""``demo`` and ``up`` on sim engines, as a person runs them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

pytestmark = pytest.mark.integration

COMMAND = (sys.executable, "-m", "contraflow.cli.main")


@asynccontextmanager
async def started(*arguments: str, **environment: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *arguments, stdout=PIPE, stderr=STDOUT, env={**os.environ, **environment}
    )
    try:
        async with asyncio.timeout(90):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("columns", ["40", "80", "200"])
async def test_the_demo_shows_that_kv_comes_back(columns: str) -> None:
    async with started("demo", "--engine", "sim", COLUMNS=columns) as demo:
        output = (await demo.communicate())[0].decode()

    assert demo.returncode == 0, output
    assert "tokens identical to the single-engine reference: 5 of 5 turns" in output
    assert output.count("PULL HANDLE_AVAILABLE") == 4
    assert "\x1b" not in output


async def test_up_prints_a_conversation_that_pulls() -> None:
    async with started("up", "--engine", "sim", "--prefill", "2", "--decode", "2") as up:
        assert up.stdout is not None
        text = (await up.stdout.readuntil(b"Ctrl-C stops everything.")).decode()
        pasted = "\n".join(line for line in text.splitlines() if line.startswith("  "))
        shell = await asyncio.create_subprocess_exec("bash", "-c", pasted, stdout=PIPE, stderr=PIPE)
        answer, errors = await shell.communicate()
        (exported,) = [line for line in text.splitlines() if line.startswith("export ")]
        variables = dict(pair.split("=", 1) for pair in exported.split()[1:])
        async with started("ps", **variables) as ps:
            engines = (await ps.communicate())[0].decode()
        up.send_signal(signal.SIGINT)
        await up.wait()

    assert (shell.returncode, errors) == (0, b"")
    assert b"outcome=PULLED" in answer
    assert up.returncode == 128 + signal.SIGINT
    assert engines.count("serving") == 4, engines
    assert text.count("prefill-") == text.count("decode-") >= 2
