"""What can go wrong with a deployment, in words for the person who started it."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path


class DeploymentError(Exception):
    """The deployment can not be started or went down. ``str(error)`` says what and what to
    do; it may have several lines."""


class SetupMissing(DeploymentError):
    """Something that ``make setup`` makes is not there."""


class ProcessDied(DeploymentError):
    """A process ended that should be running."""

    def __init__(
        self, name: str, status: int, tail: Sequence[str], log: Path, hint: str = ""
    ) -> None:
        self.name, self.status, self.tail, self.log = name, status, tuple(tail), log
        lines = [f"{name} ended unexpectedly: {describe_status(status)}"]
        if tail:
            lines += ["its last lines:", *(f"    {line}" for line in tail)]
        else:
            lines.append("it wrote nothing")
        lines.append(f"whole log: {log}")
        if status == -signal.SIGKILL:
            hint = "something killed it, maybe for want of memory: `dmesg` tells. " + hint
        if hint:
            lines.append(f"what to do: {hint.strip()}")
        super().__init__("\n".join(lines))


class NotReady(DeploymentError):
    """Nothing died, but the deployment did not become ready in time."""


def describe_status(status: int) -> str:
    """An exit status as a person says it."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
