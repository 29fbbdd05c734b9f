"""docs/grpc.md as it stands: every session is run, in order, and its output compared."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.support.doc_sessions import sessions_of

from contraflow.cli.deployment import Deployment, DeploymentSpec, EngineKind
from contraflow.v1 import (
    agent_service_pb2,
    directory_service_pb2,
    router_service_pb2,
    server_info_service_pb2,
)

pytestmark = pytest.mark.integration

PAGE = (Path(__file__).resolve().parents[2] / "docs/grpc.md").read_text()
SERVICES = (
    agent_service_pb2.DESCRIPTOR.services_by_name["AgentService"],
    directory_service_pb2.DESCRIPTOR.services_by_name["DirectoryService"],
    router_service_pb2.DESCRIPTOR.services_by_name["RouterService"],
    server_info_service_pb2.DESCRIPTOR.services_by_name["ServerInfoService"],
)
FOR_AGENTS_ONLY = {
    "RegisterEngine", "RenewEngine", "DeregisterEngine", "PublishSessions", "WithdrawSessions",
}  # fmt: skip
SESSION_SECONDS = 60.0
AGAIN_SECONDS = 30.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment() -> AsyncIterator[Deployment]:
    """What the page says it is run against."""
    async with Deployment(DeploymentSpec(engine=EngineKind.SIM, decodes=2)) as deployment:
        yield deployment


class Shell:
    """Runs commands as one terminal would: variables and functions stay from one to the next."""

    def __init__(self, folder: Path, deployment: Deployment) -> None:
        tools = Path(sys.executable).parent
        self._folder = folder
        self._state = folder / "state"
        self._state.write_text(
            f"""export PATH={shlex.quote(str(tools))}:$PATH no_proxy=127.0.0.1
            DIRECTORY={deployment.addresses.directory} AGENT={deployment.addresses.agent}
            ROUTER={deployment.routers[0].grpc}
            """
        )

    async def run(self, commands: str) -> tuple[int, str]:
        """Exit status, of the first command that fails, and all output."""
        state = shlex.quote(str(self._state))
        before = f"set -aeuo pipefail\n. {state}\n"
        after = f"\n{{ export -p; declare -f; }} >{state}\n"
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", before + commands + after, cwd=self._folder, start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            async with asyncio.timeout(SESSION_SECONDS):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode is not None
        return process.returncode, output.decode()


@pytest.mark.asyncio(loop_scope="module")
async def test_every_session_of_the_page_prints_what_the_page_says(
    deployment: Deployment, tmp_path: Path
) -> None:
    shell = Shell(tmp_path, deployment)
    loop = asyncio.get_running_loop()

    for session in sessions_of(PAGE):
        deadline = loop.time() + (AGAIN_SECONDS if session.again else 0)
        while True:
            status, output = await shell.run(session.commands)
            missing = session.missing(output)
            if (status, missing) == (0, None) or loop.time() > deadline:
                break
            await asyncio.sleep(0.1)
        told = f"docs/grpc.md, line {session.line}:\n{session.commands}{output}"
        assert status == 0, f"exit status {status} of {told}"
        assert missing is None, f"no line {missing!r}, or not in this order, from {told}"


def test_the_page_shows_every_call_that_operators_make() -> None:
    commands = "".join(session.commands for session in sessions_of(PAGE))
    calls = {
        f"{service.full_name}/{method}"
        for service in SERVICES
        for method in set(service.methods_by_name) - FOR_AGENTS_ONLY
    }
    assert {call for call in calls if call not in commands} == set()
