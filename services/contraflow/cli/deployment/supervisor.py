"""Several processes that live and end together."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from contraflow.cli.deployment import janitor
from contraflow.cli.deployment.errors import DeploymentError, NotReady, ProcessDied
from contraflow.cli.deployment.process import Process, ProcessSpec

_POLL_SECONDS = 0.1

Ready = Callable[[], Awaitable[bool]]


class Supervisor:
    """Starts processes, notices when one dies, ends all of them on exit.

    Nothing survives: on leaving the context everything is stopped, and if this process is
    killed outright, a janitor and the kernel's parent-death signal do it.
    """

    def __init__(self, logs: Path, *, grace: float = 15.0) -> None:
        self._logs = logs
        self._grace = grace
        self._processes: dict[str, Process] = {}
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._death: asyncio.Future[ProcessDied] | None = None
        self._janitor: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> Supervisor:
        self._death = asyncio.get_running_loop().create_future()
        self._janitor = _start_janitor(self._grace)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._stop_all()
        finally:
            for process in self._processes.values():
                process.kill()
            self._dismiss_janitor()

    @property
    def janitor_pid(self) -> int:
        """Process id of the janitor, while entered."""
        assert self._janitor is not None, "not entered"
        return self._janitor.pid

    async def start(self, spec: ProcessSpec) -> Process:
        """Start a process. Its name must not be in use by a running one."""
        if self.is_running(spec.name):
            raise DeploymentError(f"{spec.name} is running already")
        starting = asyncio.ensure_future(Process.start(spec, self._logs / f"{spec.name}.log"))
        try:
            process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # Half started is the one state in which nobody would stop it.
            self._adopt(await starting)
            raise
        self._adopt(process)
        return process

    async def run(self, spec: ProcessSpec) -> None:
        """Run a process to its end. Raises ProcessDied unless its exit status is 0."""
        process = await self.start(replace(spec, ends=True))
        if await process.wait():
            raise process.death()

    def get(self, name: str) -> Process:
        """The process of that name. Raises KeyError."""
        return self._processes[name]

    def is_running(self, name: str) -> bool:
        """True if a process of that name was started and has not ended."""
        process = self._processes.get(name)
        return process is not None and process.returncode is None

    async def stop(self, name: str) -> None:
        """Stop one process politely and wait until its session is empty."""
        process = self._processes[name]
        await process.stop(self._grace)
        self._forget(process)

    async def kill(self, name: str) -> None:
        """End one process and its children by SIGKILL, and wait until they are gone."""
        process = self._processes[name]
        process.kill()
        await process.stop(0)
        self._forget(process)

    async def restart(self, name: str) -> Process:
        """Stop it if it runs, then start the same command again."""
        await self.stop(name)
        return await self.start(self._processes[name].spec)

    async def death(self) -> ProcessDied:
        """Waits until a process ends that was not stopped, and returns the error."""
        assert self._death is not None, "not entered"
        return await asyncio.shield(self._death)

    async def until(self, ready: Ready, what: str, deadline: float) -> None:
        """Poll ``ready`` until it says True.

        Raises ProcessDied as soon as any process dies, NotReady after ``deadline`` seconds.
        """
        polling = asyncio.ensure_future(_poll(ready))
        dying = asyncio.ensure_future(self.death())
        try:
            done, _ = await asyncio.wait(
                {polling, dying}, timeout=deadline, return_when=asyncio.FIRST_COMPLETED
            )
            if dying in done:
                raise dying.result()
            if polling not in done:
                raise NotReady(f"{what}: not ready after {deadline:.0f} s; logs: {self._logs}")
            polling.result()
        finally:
            polling.cancel()
            dying.cancel()

    def _adopt(self, process: Process) -> None:
        name = process.spec.name
        self._processes[name] = process
        self._tell_janitor("+", process)
        self._watchers[name] = asyncio.ensure_future(self._watch(process))

    async def _watch(self, process: Process) -> None:
        await process.wait()
        expected = process.stopping or process.spec.ends
        if not expected and self._death is not None and not self._death.done():
            self._death.set_result(process.death())

    async def _stop_all(self) -> None:
        tiers = sorted({process.spec.tier for process in self._processes.values()}, reverse=True)
        for tier in tiers:
            await asyncio.gather(*(
                self.stop(name)
                for name, process in self._processes.items()
                if process.spec.tier == tier
            ))  # fmt: skip
        await asyncio.gather(*self._watchers.values())

    def _forget(self, process: Process) -> None:
        self._tell_janitor("-", process)

    def _tell_janitor(self, sign: str, process: Process) -> None:
        if self._janitor is None or self._janitor.stdin is None:
            return
        # If somebody killed it, the parent-death signal remains.
        with suppress(BrokenPipeError):
            os.write(self._janitor.stdin.fileno(), f"{sign}{process.pid}\n".encode())

    def _dismiss_janitor(self) -> None:
        if self._janitor is not None and self._janitor.stdin is not None:
            self._janitor.stdin.close()
            self._janitor.wait()
            self._janitor = None


def _start_janitor(grace: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", janitor.__file__, str(grace)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        bufsize=0,
    )


async def _poll(ready: Ready) -> None:
    while not await ready():  # noqa: ASYNC110 - asks other processes
        await asyncio.sleep(_POLL_SECONDS)
