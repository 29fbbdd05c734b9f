"""The life of a process, and the delays between its attempts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.clock import ManualClock

from contraflow.runtime.address import Address
from contraflow.runtime.backoff import Backoff
from contraflow.runtime.config import ConfigError, PortInUse
from contraflow.runtime.supervise import (
    EXIT_CONFIG,
    exit_on_config_error,
    feed_watchdog,
    notify_ready,
    run_service,
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


@pytest.fixture(params=["path", "abstract"])
def systemd(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    """The socket on which systemd hears of a service that it watches every 10 s."""
    path = str(tmp_path / "notify")
    if request.param == "abstract":
        path = f"@contraflow-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path.replace("@", "\0", 1))
        listener.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        monkeypatch.setenv("WATCHDOG_USEC", "10000000")
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
        yield listener


def heard(systemd: socket.socket) -> list[bytes]:
    messages = []
    with contextlib.suppress(BlockingIOError):
        while True:
            messages.append(systemd.recv(256))
    return messages


def test_ready_and_status_are_told_to_systemd(systemd: socket.socket) -> None:
    notify_ready("serving on 10.0.0.5:7400")
    assert heard(systemd) == [b"READY=1\nSTATUS=serving on 10.0.0.5:7400"]


def test_ready_without_systemd_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify_ready("serving")


async def test_systemd_hears_of_the_stop_before_the_loops_end(systemd: socket.socket) -> None:
    heard_at_the_end = []

    async def loop() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            heard_at_the_end.extend(heard(systemd))

    async def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    async with asyncio.timeout(20):
        await run_until_signal(loop(), interrupt())
    assert heard_at_the_end == [b"STOPPING=1\nSTATUS=stopping"]


async def test_the_watchdog_is_fed_twice_a_period(systemd: socket.socket) -> None:
    clock = ManualClock()
    feeding = asyncio.create_task(feed_watchdog(clock.sleep))
    async with asyncio.timeout(20):
        for _ in range(3):
            await clock.wait_for_sleepers()
            assert heard(systemd) == [b"WATCHDOG=1"]
            clock.advance(4.9)
            await asyncio.sleep(0)
            assert heard(systemd) == []
            clock.advance(0.1)
            await asyncio.sleep(0)
    feeding.cancel()


async def test_a_loop_that_hangs_does_not_feed_the_watchdog(systemd: socket.socket) -> None:
    clock = ManualClock()
    feeding = asyncio.create_task(feed_watchdog(clock.sleep))
    async with asyncio.timeout(20):
        await clock.wait_for_sleepers()
        heard(systemd)
        clock.advance(60.0)
        # This test is the callback that does not give the loop back.
        assert heard(systemd) == []
        await clock.wait_for_sleepers()
    assert heard(systemd) == [b"WATCHDOG=1"]
    feeding.cancel()


async def test_the_watchdog_outlives_a_systemd_that_does_not_listen(
    systemd: socket.socket,
) -> None:
    systemd.close()
    clock = ManualClock()
    feeding = asyncio.create_task(feed_watchdog(clock.sleep))
    async with asyncio.timeout(20):
        await clock.wait_for_sleepers()
    assert not feeding.done()
    feeding.cancel()


@pytest.mark.parametrize(("name", "value"), [("WATCHDOG_USEC", None), ("WATCHDOG_PID", "1")])
async def test_no_watchdog_of_ours_is_not_fed(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch, name: str, value: str | None
) -> None:
    monkeypatch.delenv(name)
    if value is not None:
        monkeypatch.setenv(name, value)
    async with asyncio.timeout(20):
        await feed_watchdog(ManualClock().sleep)
    assert heard(systemd) == []


def test_a_service_feeds_the_watchdog_until_it_has_drained(systemd: socket.socket) -> None:
    drained = []

    async def main() -> None:
        stop = asyncio.Event()
        stop.set()
        await run_until_signal(stop=stop, ready=lambda: notify_ready("serving"))
        heard(systemd)
        async with asyncio.timeout(20):
            while not (messages := heard(systemd)):  # noqa: ASYNC110 -- of the watchdog's task
                await asyncio.sleep(0.01)
        drained.extend(messages)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WATCHDOG_USEC", "20000")
        assert run_service(main) == 0
    assert set(drained) == {b"WATCHDOG=1"}
