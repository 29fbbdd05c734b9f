"""Processes live together, end together, and leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support import deployment_parent
from tests.support.deployment_parent import POLITE, STUBBORN, python
from tests.support.wait import until

from contraflow.cli.deployment.errors import DeploymentError, NotReady, ProcessDied
from contraflow.cli.deployment.launch import CANNOT_EXECUTE
from contraflow.cli.deployment.process import ProcessSpec
from contraflow.cli.deployment.procfs import session_members
from contraflow.cli.deployment.supervisor import Supervisor

DIES = "print('first'); print('last words'); raise SystemExit(3)"


async def never() -> bool:
    return False


async def test_leaving_the_context_ends_everything_even_what_ignores_sigterm(
    tmp_path: Path,
) -> None:
    async with Supervisor(tmp_path, grace=0.2) as supervisor:
        polite = await supervisor.start(python("polite", POLITE))
        stubborn = await supervisor.start(python("stubborn", STUBBORN))
        await until(lambda: stubborn.tail() == ["deaf"], "the child ignores SIGTERM")
        assert len(session_members(stubborn.pid)) == 2
    assert not session_members(polite.pid)
    assert not session_members(stubborn.pid)
    assert polite.returncode == -signal.SIGTERM
    assert stubborn.returncode == -signal.SIGKILL


async def test_a_death_while_waiting_names_process_status_last_lines_and_what_to_do(
    tmp_path: Path,
) -> None:
    async with Supervisor(tmp_path) as supervisor:
        await supervisor.start(python("doomed", DIES))
        with pytest.raises(ProcessDied) as caught:
            await supervisor.until(never, "nothing", 60)
    assert (caught.value.name, caught.value.status) == ("doomed", 3)
    assert caught.value.tail == ("first", "last words")
    for part in ("doomed", "exit status 3", "last words", "doomed.log", "look at the test"):
        assert part in str(caught.value)


async def test_the_tail_is_the_last_twenty_lines(tmp_path: Path) -> None:
    async with Supervisor(tmp_path) as supervisor:
        await supervisor.start(python("doomed", "[print(i) for i in range(50)]; exit(1)"))
        died = await supervisor.death()
    assert died.tail == tuple(map(str, range(30, 50)))


async def test_a_command_that_can_not_be_executed_says_so(tmp_path: Path) -> None:
    async with Supervisor(tmp_path) as supervisor:
        await supervisor.start(ProcessSpec("missing", ["/no/such/program"]))
        died = await supervisor.death()
    assert died.status == CANNOT_EXECUTE
    assert died.tail == ("/no/such/program: No such file or directory",)


async def test_a_killed_process_is_suspected_of_want_of_memory(tmp_path: Path) -> None:
    async with Supervisor(tmp_path) as supervisor:
        process = await supervisor.start(python("victim", POLITE))
        process.signal(signal.SIGKILL)
        died = await supervisor.death()
    assert "killed by SIGKILL" in str(died)
    assert "memory" in str(died)


async def test_not_ready_in_time(tmp_path: Path) -> None:
    async with Supervisor(tmp_path) as supervisor:
        await supervisor.start(python("polite", POLITE))
        with pytest.raises(NotReady, match="the thing"):
            await supervisor.until(never, "the thing", 0)


async def test_stopped_and_killed_processes_are_no_deaths_and_can_be_restarted(
    tmp_path: Path,
) -> None:
    async with Supervisor(tmp_path) as supervisor:
        first = await supervisor.start(python("polite", POLITE))
        with pytest.raises(DeploymentError, match="running already"):
            await supervisor.start(python("polite", POLITE))
        await supervisor.kill("polite")
        assert first.returncode == -signal.SIGKILL
        second = await supervisor.restart("polite")
        assert second.pid != first.pid
        third = await supervisor.restart("polite")
        assert (second.returncode, third.returncode) == (-signal.SIGTERM, None)
        with pytest.raises(NotReady):
            await supervisor.until(never, "a death", 0.2)


async def test_higher_tiers_stop_first(tmp_path: Path) -> None:
    ends = tmp_path / "ends"
    program = f"""
import signal, sys
def end(*_):
    open({str(ends)!r}, "a").write(sys.argv[1] + " ")
    sys.exit()
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
while True: signal.pause()
"""
    async with Supervisor(tmp_path) as supervisor:
        started = [
            await supervisor.start(
                ProcessSpec(name, [sys.executable, "-c", program, name], tier=tier)
            )
            for name, tier in (("store", 0), ("router", 2), ("agent", 1))
        ]
        await until(lambda: all(p.tail() == ["ready"] for p in started), "all listen to SIGTERM")
    assert ends.read_text().split() == ["router", "agent", "store"]


async def test_a_one_time_command_runs_to_its_end(tmp_path: Path) -> None:
    async with Supervisor(tmp_path) as supervisor:
        await supervisor.run(python("maker", "print('made')"))
        with pytest.raises(ProcessDied, match="exit status 3"):
            await supervisor.run(python("maker", DIES))
        with pytest.raises(NotReady):  # neither counts as a death
            await supervisor.until(never, "a death", 0.2)


async def test_cancelling_while_stopping_kills_at_once(tmp_path: Path) -> None:
    async with Supervisor(tmp_path, grace=600) as supervisor:
        stubborn = await supervisor.start(python("stubborn", STUBBORN))
        await until(lambda: stubborn.tail() == ["deaf"], "the child ignores SIGTERM")
        stopping = asyncio.ensure_future(supervisor.stop("stubborn"))
        await until(lambda: stubborn.stopping, "stopping has begun")
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        await until(lambda: not session_members(stubborn.pid), "the child is gone")


@asynccontextmanager
async def running_parent(logs: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, list[int]]]:
    """The program of ``deployment_parent``; gives it and the ids of its children's sessions."""
    parent = await asyncio.create_subprocess_exec(
        sys.executable, deployment_parent.__file__, str(logs), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pids = json.loads(await parent.stdout.readline())
    sessions = [pids["polite"], pids["stubborn"], pids["janitor"]]
    try:
        assert all(map(session_members, sessions))
        yield parent, sessions
    finally:
        if parent.returncode is None:
            parent.kill()
        await parent.wait()
        for session in sessions:
            for pid in session_members(session):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_to_the_command_ends_all_processes(
    tmp_path: Path, number: signal.Signals
) -> None:
    async with running_parent(tmp_path) as (parent, sessions):
        parent.send_signal(number)
        assert await parent.wait() == 128 + number
        assert not any(map(session_members, sessions))


async def test_kill_9_of_the_command_leaves_nothing_behind(tmp_path: Path) -> None:
    async with running_parent(tmp_path) as (parent, sessions):
        parent.kill()
        await parent.wait()
        await until(lambda: not any(map(session_members, sessions)), "all are gone")


async def test_kill_9_of_command_and_janitor_still_ends_what_takes_sigterm(
    tmp_path: Path,
) -> None:
    async with running_parent(tmp_path) as (parent, sessions):
        os.kill(sessions[-1], signal.SIGKILL)
        parent.kill()
        await parent.wait()
        await until(lambda: not session_members(sessions[0]), "the polite child is gone")
