"""The example in Node against a deployment of sim engines: installed from its lock, then run."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from tests.support.wait import until_good

from contraflow.cli.deployment import Deployment, DeploymentSpec, EngineKind
from contraflow.core.fleet import Role
from contraflow.v1 import agent_service_pb2 as agent_pb
from contraflow.v1 import router_service_pb2 as router_pb
from contraflow.v1.agent_service_pb2_grpc import AgentServiceStub
from contraflow.v1.engine_pb2 import Engine
from contraflow.v1.router_service_pb2_grpc import RouterServiceStub

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = Path("tests/clients/node")
DEADLINE_SECONDS = 180


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy beside the protos, so that what npm installs stays out of the tree."""
    root = tmp_path_factory.mktemp("node")
    shutil.copytree(ROOT / EXAMPLE, root / EXAMPLE, ignore=shutil.ignore_patterns("node_modules"))
    (root / "proto").symlink_to(ROOT / "proto")
    yield root / EXAMPLE
    shutil.rmtree(root)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def installed(example: Path) -> Path:
    status, output = await run(example, "npm", "ci")
    assert status == 0, output
    return example


async def run(folder: Path, program: str, *args: str) -> tuple[int, str]:
    """Exit status and output of a program of the environment that the tests run in."""
    tools = Path(sys.executable).parent
    process = await asyncio.create_subprocess_exec(
        tools / program, *args, cwd=folder,
        env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "no_grpc_proxy": "127.0.0.1"},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode is not None
    return process.returncode, output.decode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment() -> AsyncIterator[Deployment]:
    async with Deployment(DeploymentSpec(engine=EngineKind.SIM)) as deployment:
        yield deployment


async def drain(deployment: Deployment, endpoint: str) -> None:
    """Drain the engine there; returns once the router knows."""
    agent, router = deployment.addresses.agent, deployment.routers[0].grpc
    async with channel(agent) as to_agent, channel(router) as to_router:
        view = RouterServiceStub(to_router).ListViewEngines

        async def seen() -> Engine:
            known = await view(router_pb.ListViewEnginesRequest(), timeout=5)
            return next(one for one in known.engines if one.endpoint == endpoint)

        request = agent_pb.DrainEngineRequest(engine_id=(await seen()).engine_id, draining=True)
        await AgentServiceStub(to_agent).DrainEngine(request, timeout=5)
        await until_good(seen, lambda engine: engine.draining)


def channel(target: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(target, options=[("grpc.enable_http_proxy", 0)])


async def test_it_talks_three_turns_explains_them_cancels_and_reads_an_error(
    installed: Path, deployment: Deployment
) -> None:
    status, output = await run(installed, "node", "conversation.js", deployment.routers[0].grpc)

    assert status == 0, output
    answers = re.findall(r"^  answer  (.+)$", output, re.MULTILINE)
    assert [len(answer) for answer in answers] == [96, 96, 96], output
    assert re.findall(r"^  result  (\S+) (\S+) (\S+),", output, re.MULTILINE) == [
        (
            "DECISION_RECOMPUTE",
            "DECISION_REASON_NO_HANDLE",
            "PULL_OUTCOME_UNSPECIFIED",
        ),
        *[("DECISION_PULL", "DECISION_REASON_HANDLE_AVAILABLE", "PULL_OUTCOME_PULLED")] * 2,
    ]
    pulled = [int(count) for count in re.findall(r"PULL_OUTCOME_\w+, (\d+) tokens", output)]
    assert pulled[0] == 0
    assert f"pulled {sum(pulled)} tokens in all\n" in output
    for role in ("PREFILL", "DECODE"):
        assert len(re.findall(rf"^  candidate \S+ ENGINE_ROLE_{role} score", output, re.M)) == 2
    estimates = re.findall(r"^  estimate (\S+) pulls (\d+), computes (\d+) ", output, re.MULTILINE)
    assert [kind for kind, *_ in estimates] == ["DECISION_PULL", "DECISION_RECOMPUTE"] * 2
    assert estimates[0][1] == estimates[1][2] != "0"
    assert "cancelled after 1 chunk(s): CANCELLED\n" in output
    assert "error NOT_FOUND, reason contraflow/NOT_FOUND: " in output


async def test_it_explains_why_an_engine_is_out_and_fails_when_a_turn_does_not_pull(
    installed: Path,
) -> None:
    # Nothing is worth a pull at this threshold.
    spec = DeploymentSpec(engine=EngineKind.SIM, decodes=2, recompute_threshold_tokens=4096)
    async with Deployment(spec) as deployment:
        router = deployment.routers[0].grpc
        await drain(deployment, deployment.engine(Role.DECODE, 2).endpoint)

        status, output = await run(installed, "node", "conversation.js", router)

    assert status == 1, output
    assert len(re.findall(r"^  candidate decode-2\S+ ENGINE_ROLE_DECODE out: draining$",
                          output, re.MULTILINE)) == 2  # fmt: skip
    assert "  DECISION_RECOMPUTE DECISION_REASON_BELOW_THRESHOLD, session " in output
    assert "turn 2 did not pull: " in output
    assert "turn 3 did not pull: " in output


async def test_it_says_in_one_line_that_nobody_answers(
    installed: Path, deployment: Deployment
) -> None:
    target = deployment.engine(Role.DECODE).endpoint.removeprefix("http://")

    status, output = await run(installed, "node", "conversation.js", target)

    assert status == 1, output
    assert re.search(r"^(UNAVAILABLE|INTERNAL|UNKNOWN) ", output, re.MULTILINE), output
    assert "    at " not in output
