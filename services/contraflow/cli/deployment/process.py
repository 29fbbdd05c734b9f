"""One child process: its own session, its own log, ended politely and then surely."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from contraflow.cli.deployment import launch
from contraflow.cli.deployment.errors import ProcessDied
from contraflow.cli.deployment.procfs import session_members, signal_all

_POLL_SECONDS = 0.05
_NO_PROXY = "127.0.0.1,localhost"
TAIL_LINES = 20


@dataclass(frozen=True)
class ProcessSpec:
    """What to run. ``tier``: higher ones are stopped first. ``hint``: what a person can do
    when it dies. ``ends``: it is meant to end by itself."""

    name: str
    command: Sequence[str]
    tier: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    hint: str = ""
    ends: bool = False


class Process:
    """A running or ended process of a spec. ``pid`` is also the id of its session."""

    def __init__(self, spec: ProcessSpec, log: Path, child: asyncio.subprocess.Process) -> None:
        self.spec, self.log = spec, log
        self._child = child
        self.stopping = False

    @classmethod
    async def start(cls, spec: ProcessSpec, log: Path) -> Process:
        """Start it; output is appended to ``log``. Raises OSError only if forking fails."""
        with log.open("ab") as output:
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), *spec.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_environment(spec.env),
                cwd=spec.cwd,
                start_new_session=True,
            )  # fmt: skip
        return cls(spec, log, child)

    @property
    def pid(self) -> int:
        """Process id, of the ended process too."""
        return self._child.pid

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        return self._child.returncode

    async def wait(self) -> int:
        """The exit status, once it has ended."""
        return await self._child.wait()

    async def stop(self, grace: float) -> None:
        """SIGTERM to the process; after ``grace`` seconds SIGKILL to its whole session.

        Returns when nothing of the session is left. Cancelled, it kills at once.
        """
        self.stopping = True
        try:
            self.signal(signal.SIGTERM)
            async with asyncio.timeout(grace):
                await self._session_end()
        except TimeoutError:
            pass
        finally:
            self.kill()
        await self._session_end()

    def kill(self) -> None:
        """SIGKILL to the whole session."""
        self.stopping = True
        signal_all(session_members(self.pid), signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process alone, if it still runs."""
        # Not by asyncio's own method: that one may reap the child, and its status is lost.
        if self.pid in session_members(self.pid):
            signal_all([self.pid], number)

    def death(self) -> ProcessDied:
        """The error that describes its end."""
        status = self.returncode if self.returncode is not None else 0
        return ProcessDied(self.spec.name, status, self.tail(), self.log, self.spec.hint)

    def tail(self, lines: int = TAIL_LINES) -> list[str]:
        """The last lines of its log that are not empty."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]

    async def _session_end(self) -> None:
        await self._child.wait()
        while session_members(self.pid):  # noqa: ASYNC110 - /proc announces nothing
            await asyncio.sleep(_POLL_SECONDS)


def _environment(added: Mapping[str, str]) -> dict[str, str]:
    # Everything talks on loopback, which a proxy of the machine must not get to see.
    bypass = {
        name: ",".join(filter(None, [os.environ.get(name), _NO_PROXY]))
        for name in ("no_proxy", "NO_PROXY")
    }
    return {**os.environ, **bypass, **added}
