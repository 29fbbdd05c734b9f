"""The life of a process, and the delays between its attempts."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

import pytest

from contraflow.runtime.address import Address
from contraflow.runtime.backoff import Backoff
from contraflow.runtime.config import ConfigError, PortInUse
from contraflow.runtime.supervise import (
    EXIT_CONFIG,
    exit_on_config_error,
    notify_ready,
    run_until_signal,
)


def test_backoff_doubles_to_its_maximum_and_starts_over() -> None:
    backoff = Backoff(initial=1.0, maximum=5.0, draw=lambda: 1.0)
    assert [backoff.next() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.reset()
    assert backoff.next() == 1.0


def test_backoff_draws_from_the_upper_half() -> None:
    assert Backoff(initial=1.0, draw=lambda: 0.0).next() == 0.5


def test_a_config_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise ExceptionGroup("of tasks", [PortInUse(Address("127.0.0.1", 80))])

    assert exit_on_config_error(fail) == EXIT_CONFIG
    assert capsys.readouterr().err == "contraflow: 127.0.0.1:80 is in use by another process\n"


def test_other_errors_propagate() -> None:
    def fail() -> None:
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        exit_on_config_error(fail)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_cancels_the_loops(number: signal.Signals) -> None:
    ended: list[str] = []

    async def loop(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    async def interrupt() -> None:
        os.kill(os.getpid(), number)

    async with asyncio.timeout(20):
        await run_until_signal(loop("a"), loop("b"), interrupt())
    assert sorted(ended) == ["a", "b"]


async def test_a_failing_loop_ends_all() -> None:
    async def fail() -> None:
        raise ConfigError("bad")

    with pytest.raises(ExceptionGroup):
        await run_until_signal(asyncio.Event().wait(), fail())


def test_ready_is_told_to_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        notify_ready()
        assert listener.recv(64) == b"READY=1"


def test_ready_without_systemd_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify_ready()
