"""4P4D sim engines, 200 conversations at once: right, reused, nothing left, nothing told.

One run serves all tests here. Between the processes stand taps, which keep every byte of what
directory, agent, engines' links and etcd are told.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import grpc
import pytest
import pytest_asyncio
from tests.fleet.conversations import Client, Conversation, Said, Script, reference
from tests.support.tap import Tap, tapped
from tests.support.wait import until_good

from contraflow.cli.deployment import Deployment, DeploymentSpec, EngineKind
from contraflow.v1 import agent_service_pb2 as agent_pb
from contraflow.v1 import directory_service_pb2 as directory_pb
from contraflow.v1.agent_service_pb2_grpc import AgentServiceStub
from contraflow.v1.directory_service_pb2_grpc import DirectoryServiceStub

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

CONVERSATIONS = 200
AT_ONCE = 48
_NO_PROXY = [("grpc.enable_http_proxy", 0)]


@dataclass(frozen=True)
class Run:
    """What came of it."""

    branches: list[Conversation]
    wrong: list[Said]
    left: tuple[int, int]
    """Sessions and handles, once the handles of the last turns were released."""
    markers: list[str]
    logs: dict[str, bytes]
    messages: dict[str, list[bytearray]]

    @property
    def later_turns(self) -> list[Said]:
        """Turns that had something to pull."""
        return [said for branch in self.branches for said in branch.turns if said.number > 1]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Run]:
    """The whole run, deployment ended."""
    script = Script(seed=3)
    folder = tmp_path_factory.mktemp("taps")
    folder.chmod(0o700)
    async with AsyncExitStack() as stack:
        deployment: Deployment
        taps = {
            name: await stack.enter_async_context(tapped(target, socket))
            for name, target, socket in (
                ("etcd", lambda: deployment.addresses.etcd, None),
                ("directory", lambda: deployment.addresses.directory, None),
                ("agent", lambda: deployment.addresses.agent, None),
                ("engines", lambda: deployment.addresses.agent_socket, folder / "engines.sock"),
            )
        }
        spec = DeploymentSpec(
            engine=EngineKind.SIM,
            prefills=4,
            decodes=4,
            routers=2,
            with_reference=True,
            blocks=16384,
            dialled={name: tap.address for name, tap in taps.items()},
            log_level="debug",
        )
        deployment = Deployment(spec)
        async with deployment:
            yield await _run(deployment, script, taps)


async def _run(deployment: Deployment, script: Script, taps: dict[str, Tap]) -> Run:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as http:
        client = Client(http, deployment.routers, script, AT_ONCE)
        held = await asyncio.gather(
            *(client.hold(one) for one in script.conversations(CONVERSATIONS))
        )
        branches = [branch for branches in held for branch in branches]
        wrong = await _wrong(http, deployment.reference.endpoint, branches)
    left = await _ended(deployment)
    logs = _logs(deployment.run_dir)
    messages = {name: tap.recorded for name, tap in taps.items()}
    return Run(branches, wrong, left, script.markers, logs, messages)


def _logs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.log")}


async def _wrong(
    http: aiohttp.ClientSession, endpoint: str, branches: list[Conversation]
) -> list[Said]:
    """Turns whose tokens are not the reference's."""
    gate = asyncio.Semaphore(8)

    async def differs(said: Said) -> bool:
        async with gate:
            return await reference(http, endpoint, said) != said.output_ids

    turns = [said for branch in branches for said in branch.turns]
    results = await asyncio.gather(*map(differs, turns))
    return [said for said, different in zip(turns, results, strict=True) if different]


async def _ended(deployment: Deployment) -> tuple[int, int]:
    """Release what is retained; sessions and handles that are left after it."""
    addresses = deployment.addresses
    async with (
        grpc.aio.insecure_channel(addresses.agent, options=_NO_PROXY) as agent_channel,
        grpc.aio.insecure_channel(addresses.directory, options=_NO_PROXY) as directory_channel,
    ):
        agent, directory = AgentServiceStub(agent_channel), DirectoryServiceStub(directory_channel)

        async def left() -> tuple[int, int]:
            page = await agent.ListHandles(agent_pb.ListHandlesRequest(), timeout=10)
            if ids := [handle.handle_id for handle in page.handles]:
                release = agent_pb.ReleaseHandlesRequest(handle_ids=ids)
                await agent.ReleaseHandles(release, timeout=30)
            known = await directory.ListSessions(directory_pb.ListSessionsRequest(), timeout=10)
            return len(known.sessions), len(ids)

        return await until_good(left, lambda counts: counts == (0, 0), within=60)


async def test_every_answer_is_right(run: Run) -> None:
    turns = sum(len(branch.turns) for branch in run.branches)
    assert turns >= CONVERSATIONS * 10
    assert run.wrong == []


async def test_nearly_every_later_turn_reuses(run: Run) -> None:
    """A fork shares its first turn with its twin: one of both finds the handle used up."""
    reused = [said for said in run.later_turns if said.report.get("outcome") == "PULLED"]
    others = [said.report for said in run.later_turns if said not in reused]
    assert len(reused) >= 0.95 * len(run.later_turns), others[:10]


async def test_conversations_without_a_session_id_are_found_by_their_messages(run: Run) -> None:
    implicit = [branch for branch in run.branches if not branch.session]
    turns = [said for branch in implicit for said in branch.turns if said.number > 1]
    reused = [said for said in turns if said.report.get("outcome") == "PULLED"]
    assert len(reused) >= 0.95 * len(turns), [said.report for said in turns[:10]]


async def test_nothing_is_left_at_the_end(run: Run) -> None:
    assert run.left == (0, 0)


async def test_no_log_line_tells_what_was_said(run: Run) -> None:
    assert {"agent.log", "directory.log", "router-1.log", "decode-1.log"} <= run.logs.keys()
    told = {name for name, log in run.logs.items() for form in forms(run) if form in log}
    assert told == set()


async def test_no_message_and_no_record_tells_what_was_said(run: Run) -> None:
    """Text, or ids in any of the forms in which they might travel."""
    assert all(sum(map(len, recorded)) > 10_000 for recorded in run.messages.values())
    told = {
        name
        for name, recorded in run.messages.items()
        for form in forms(run)
        for data in recorded
        if form in data
    }
    assert told == set()


def forms(run: Run) -> list[bytes]:
    """What clients and engines said: as text, as packed varints (the same for such small ids),
    as 32-bit words, and as JSON lists."""
    answers = [bytes(said.output_ids[:12]) for branch in run.branches for said in branch.turns]
    texts = [marker.encode() for marker in run.markers[::10]] + answers[::10]
    words = [b"".join(byte.to_bytes(4, "little") for byte in text) for text in texts]
    lists = [separator.join(str(byte).encode() for byte in text)
             for text in texts for separator in (b", ", b",")]  # fmt: skip
    return texts + words + lists
