"""A program that supervises trivial children, to be interrupted or killed by a test.

Run as ``python deployment_parent.py LOG_FOLDER``. Starts a polite child, and a stubborn one that
ignores SIGTERM and has a child of its own; prints ``{"polite": PID, "stubborn": PID, "janitor":
PID}`` as one line once the stubborn one is deaf, then waits.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from contraflow.cli.deployment.process import ProcessSpec
from contraflow.cli.deployment.supervisor import Supervisor
from contraflow.cli.session import run_command

GRACE_SECONDS = 0.5
POLITE = "import time; time.sleep(600)"
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # inherited by the child
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("deaf", flush=True)
time.sleep(600)
"""


async def main() -> int:
    """Supervise until cancelled."""
    logs = Path(sys.argv[1])
    async with Supervisor(logs, grace=GRACE_SECONDS) as supervisor:
        polite = await supervisor.start(python("polite", POLITE))
        stubborn = await supervisor.start(python("stubborn", STUBBORN))

        async def deaf() -> bool:
            return stubborn.tail() == ["deaf"]

        await supervisor.until(deaf, "the stubborn child", 30)
        pids = {"polite": polite.pid, "stubborn": stubborn.pid, "janitor": supervisor.janitor_pid}
        print(json.dumps(pids), flush=True)
        raise await supervisor.death()


def python(name: str, program: str, tier: int = 0) -> ProcessSpec:
    """The spec of a process that runs a Python program."""
    return ProcessSpec(name, [sys.executable, "-c", program], tier=tier, hint="look at the test")


if __name__ == "__main__":
    sys.exit(run_command(main))
