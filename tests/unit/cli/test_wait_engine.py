"""Waiting for an engine that starts, is late, or ends."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner
from tests.support.clock import ManualClock
from tests.support.fake_engine_link import HealthEndpoint

from contraflow.cli.commands import commands
from contraflow.cli.wait_engine import EngineNotStarted, until_started

NOBODY = "http://127.0.0.1:1"


async def test_an_engine_has_started_once_it_is_healthy() -> None:
    clock = ManualClock()
    async with HealthEndpoint().serving() as engine, asyncio.timeout(20):
        engine.healthy = False
        waiting = asyncio.create_task(until_started(engine.url, 60.0, clock, lambda: True))
        await clock.wait_for_sleepers()
        assert not waiting.done()
        engine.healthy = True
        clock.advance(1.0)
        await waiting


async def test_the_wait_is_bounded() -> None:
    clock = ManualClock()
    async with asyncio.timeout(20):
        waiting = asyncio.create_task(until_started(NOBODY, 60.0, clock, lambda: True))
        await clock.wait_for_sleepers()
        clock.advance(60.0)
        with pytest.raises(EngineNotStarted, match=r"127\.0\.0\.1:1/health .* after 60 s"):
            await waiting


async def test_the_wait_ends_with_the_engine() -> None:
    async with asyncio.timeout(20):
        with pytest.raises(EngineNotStarted, match="has ended"):
            await until_started(NOBODY, 60.0, ManualClock(), lambda: False)


def test_a_process_that_is_gone_is_one_line_and_exit_status_1() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    result = CliRunner().invoke(commands, ["wait-engine", NOBODY, "--pid", str(gone.pid)])
    assert result.exit_code == 1
    assert "contraflow: the engine has ended" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_process_that_runs_is_waited_for_until_the_end_of_the_time() -> None:
    command = ["wait-engine", NOBODY, "--pid", str(os.getpid()), "--within", "0"]
    result = CliRunner().invoke(commands, command)
    assert result.exit_code == 1
    assert "after 0 s" in result.stderr


@pytest.mark.parametrize(
    "text", ["10.0.0.5:8100", "http://", "http://h:x", "http://h:70000", "http://[::1", "ftp://h:1"]
)
def test_what_is_no_url_is_wrong_usage(text: str) -> None:
    result = CliRunner().invoke(commands, ["wait-engine", text, "--within", "0"])
    assert result.exit_code == 2
    assert f"{text!r} is not http://host:port" in result.stderr
