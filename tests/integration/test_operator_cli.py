"""The operators' commands against a real directory and agents, engines and router faked."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from structlog.testing import capture_logs
from tests.support.directory_content import free_address
from tests.support.fake_engine_link import FakeEngineLink, HealthEndpoint, engine, session_key
from tests.support.fake_router import FakeRouter
from tests.support.running_agent import RunningAgent, eventually, running_agent
from tests.support.running_directory import ANY_PORT, running_directory, until_healthy

from contraflow.cli.main import main
from contraflow.cli.operate import drain
from contraflow.core.errors import NoEligibleEngine, Unauthenticated
from contraflow.core.fleet import Role
from contraflow.core.handle import Handle, State
from contraflow.directory.config import DirectoryConfig, LimitsConfig, LivenessConfig
from contraflow.runtime.clock import SystemClock
from contraflow.runtime.directory_client import DirectoryClient
from contraflow.v1 import engine_pb2, handle_pb2
from contraflow.v1 import router_service_pb2 as pb
from contraflow.wire.convert import duration

pytestmark = pytest.mark.integration


@dataclass
class World:
    """decode-1 and prefill-1, each with an agent of its own; the directory gives pages of two."""

    environment: dict[str, str]
    client: DirectoryClient
    agent: RunningAgent
    decode: FakeEngineLink
    prefill: FakeEngineLink
    router: FakeRouter

    async def run(self, *args: str, answer: str = "") -> Result:
        """A command, in a thread beside the servers."""
        with capture_logs():  # or the servers' log lines would land in its output
            return await asyncio.to_thread(
                CliRunner().invoke, main, args, input=answer, env=self.environment
            )

    async def told(self, *args: str, answer: str = "") -> str:
        """What a command prints that succeeds."""
        result = await self.run(*args, answer=answer)
        assert result.exit_code == 0, result.output
        assert "\x1b" not in result.output
        return result.stdout

    async def document(self, *args: str) -> Any:
        """What it prints as JSON."""
        return json.loads(await self.told(*args, "--json"))

    async def failure(self, *args: str, answer: str = "") -> str:
        """The one line that it says when it fails."""
        result = await self.run(*args, answer=answer)
        assert result.exit_code == 1, result.output
        lines = result.stderr.splitlines()
        assert lines[-1].startswith("contraflow: "), result.output
        return lines[-1]

    async def handle_ids(self, *args: str) -> list[str]:
        """The ids that ``handles`` shows."""
        return [one["handle_id"] for one in (await self.document("handles", *args))["handles"]]

    async def known(self, *handles: Handle) -> None:
        """Return once the agents know just these handles."""
        expected = sorted(handle.handle_id for handle in handles)

        async def as_expected() -> bool:
            return await self.handle_ids() == expected

        await eventually(as_expected, f"the agents know {expected}")

    async def published(self, count: int) -> None:
        """Return once the directory knows both engines and so many sessions."""

        async def known() -> bool:
            engines = await self.document("ps")
            sessions = await self.document("sessions")
            return len(engines["engines"]) >= 2 and len(sessions["sessions"]) == count

        await eventually(known, f"{count} sessions are published")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    config = DirectoryConfig(
        listen=ANY_PORT, store="memory", limits=LimitsConfig(max_page_size=2),
        liveness=LivenessConfig(min_ttl_seconds=0.5), log_level="error",
    )  # fmt: skip
    router = FakeRouter()
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        directory = await enter(running_directory(config))
        await until_healthy(directory)
        health = await enter(HealthEndpoint().serving())
        one = await enter(running_agent([directory], listen=free_address(), ttl=300.0))
        other = await enter(running_agent([directory], listen=free_address(), ttl=300.0))
        decode = FakeEngineLink(engine("decode-1", endpoint=health.url))
        prefill = FakeEngineLink(engine("prefill-1", endpoint=health.url, role=Role.PREFILL))
        await enter(decode.attached(one.link))
        await enter(prefill.attached(other.link))
        environment = {
            "CONTRAFLOW_DIRECTORY": str(directory),
            "CONTRAFLOW_ROUTER": str(await enter(router.serving())),
        }
        client = DirectoryClient([directory], SystemClock())
        stack.push_async_callback(client.close)
        world = World(environment, client, one, decode, prefill, router)
        await world.published(0)
        yield world


# ps


async def test_ps_shows_what_directory_agents_and_router_say(world: World) -> None:
    world.decode.retain("a")
    world.decode.report(handle_pb2.PULL_OUTCOME_PULLED, pulled_tokens=64)
    await world.published(1)
    world.router.view = pb.ListViewEnginesResponse(revision=7, age=duration(0.4))
    unreachable = engine("lost-1", endpoint="http://127.0.0.1:10")
    await world.client.register(replace(unreachable, agent_address=str(free_address())), ttl=60.0)
    await world.prefill.detach()

    async def as_expected() -> bool:
        engines = (await world.document("ps"))["engines"]
        states = {one["engine_id"]: one["state"] for one in engines}
        expected = {"decode-1": "serving", "prefill-1": "unattached", "lost-1": "agent unreachable"}
        return states == expected

    await eventually(as_expected, "each engine is in its state")
    document = await world.document("ps")
    first = document["engines"][0]
    assert first["engine_id"] == "decode-1"
    assert (first["role"], first["retained_handles"]) == ("decode", 1)
    assert first["pulls"] == {"PULLED": 1}
    assert document["engines"][1]["retained_handles"] is None
    assert document["view"]["revision"] == 7
    text = await world.told("ps")
    assert all(one in text for one in ("decode-1", "prefill-1", "agent unreachable", "1 pulled"))
    assert "heard 0.4 s ago" in text


async def test_ps_does_without_a_router(world: World) -> None:
    nobody = str(free_address())
    assert "no answer from the router" in await world.told("ps", "--router", nobody)
    assert (await world.document("ps", "--router", nobody))["view"] is None


@pytest.mark.parametrize("command", ["ps", "sessions", "handles", "drain x", "release a/1"])
async def test_without_a_directory_one_line_says_what_to_do(command: str) -> None:
    result = await asyncio.to_thread(
        CliRunner().invoke, main, [*command.split(), "--directory", str(free_address())]
    )
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert "--directory or CONTRAFLOW_DIRECTORY" in result.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("ps", "--directory", "nonsense"),
        ("plan", "--router", "::1:7000"),
        ("drain",),
        ("drain", "x", "--undo", "--wait"),
        ("release",),
        ("release", "a/1", "--engine", "a"),
        ("release", "no-slash"),
        ("plan", "--request", "/no/such/file"),
        ("sessions", "--bogus"),
    ],
)
def test_wrong_usage_is_exit_status_2(args: tuple[str, ...]) -> None:
    assert CliRunner().invoke(main, args).exit_code == 2


async def test_a_server_of_another_kind_is_called_so(world: World) -> None:
    router = world.environment["CONTRAFLOW_ROUTER"]
    assert "does not speak as a directory" in await world.failure("ps", "--directory", router)


# sessions


async def test_sessions_come_newest_lease_first_from_all_pages(world: World) -> None:
    for number, ttl in enumerate((260.0, 400.0, 280.0, 300.0, 250.0)):
        world.decode.retain(f"s{number}", ttl=ttl, tokens=1000 + number)
    await world.published(5)
    found = (await world.document("sessions"))["sessions"]
    assert [one["session_key"] for one in found] == [session_key(f"s{n}") for n in (1, 3, 2, 0, 4)]
    assert found[0]["num_tokens"] == 1001
    assert 390 < found[0]["ttl_seconds"] <= 400
    text = await world.told("sessions")
    assert "1,001" in text
    assert "5 sessions" in text


async def test_sessions_of_one_engine(world: World) -> None:
    world.decode.retain("a")
    await world.published(1)
    assert "1 session " in await world.told("sessions", "--engine", "deco")
    assert (await world.document("sessions", "--engine", "prefill-1")) == {"sessions": []}
    assert "`contraflow ps`" in await world.failure("sessions", "--engine", "nobody")
    both = await world.failure("sessions", "--engine", world.decode.engine.endpoint)
    assert "decode-1, prefill-1" in both


# handles


async def test_handles_by_session_and_engine(world: World) -> None:
    handles = [world.decode.retain(name) for name in ("a", "b", "c")]
    handles.append(world.prefill.retain("a"))
    await world.agent.acquire("claim-1", "b")
    await world.known(*handles)
    found = (await world.document("handles"))["handles"]
    assert [one["state"] for one in found] == ["RETAINED", "CLAIMED", "RETAINED", "RETAINED"]
    assert found[1]["claim_id"] == "claim-1"
    text = await world.told("handles", "--engine", "decode-1")
    assert "3 handles of 1 engine" in text
    assert "claim-1" in text
    of_session = [handles[0].handle_id, handles[3].handle_id]
    assert await world.handle_ids("--session", session_key("a")) == of_session
    world.router.plan = pb.PlanTurnResponse(session_key=session_key("a"))
    assert await world.handle_ids("--session", "chat", "--tenant", "acme") == of_session
    assert (world.router.asked[0].session_id, world.router.asked[0].tenant) == ("chat", "acme")
    world.router.plan = pb.PlanTurnResponse()
    assert "by its key" in await world.failure("handles", "--session", "chat")
    world.router.error = NoEligibleEngine("no decode engine serves the model")
    assert "by its key" in await world.failure("release", "--session", "chat")


async def test_handles_of_agents_that_do_not_answer_are_missed_aloud(world: World) -> None:
    world.decode.retain("a")
    await world.published(1)
    nobody = str(free_address())
    await world.client.register(replace(engine("lost-1"), agent_address=nobody), ttl=60.0)

    async def both() -> bool:
        return len((await world.document("ps"))["engines"]) == 3

    await eventually(both, "the directory has it")
    result = await world.run("handles")
    assert result.exit_code == 0
    assert "decode-1/" in result.stdout
    assert nobody in result.stderr
    assert (await world.document("handles"))["unreachable_agents"] == [nobody]


async def test_watching_handles_until_ctrl_c(world: World) -> None:
    first = world.decode.retain("a")
    await world.published(1)
    watching = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "contraflow.cli.main", "handles", "--watch", "--json",
        env=os.environ | world.environment,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert watching.stdout is not None

    async def line() -> tuple[str, str]:
        assert watching.stdout is not None
        async with asyncio.timeout(30):
            found = json.loads(await watching.stdout.readline())
        return found["state"], found["handle_id"]

    assert await line() == ("RETAINED", first.handle_id)
    await world.agent.acquire("c1", "a")
    assert await line() == ("CLAIMED", first.handle_id)
    world.decode.end(first, State.READ)
    assert await line() == ("READ", first.handle_id)
    other = world.prefill.retain("b")
    assert await line() == ("RETAINED", other.handle_id)
    watching.send_signal(signal.SIGINT)
    async with asyncio.timeout(30):
        _, errors = await watching.communicate()
    assert (watching.returncode, errors) == (0, b"")


async def test_a_watch_without_any_agent_ends(world: World) -> None:
    await world.client.register(
        replace(engine("lost-1"), agent_address=str(free_address())), ttl=60.0
    )

    async def listed() -> bool:
        return len((await world.document("ps"))["engines"]) == 3

    await eventually(listed, "the directory has it")
    failure = await world.failure("handles", "--watch", "--engine", "lost-1")
    assert "no agent is left" in failure


# plan


DECODE, PREFILL = engine_pb2.ENGINE_ROLE_DECODE, engine_pb2.ENGINE_ROLE_PREFILL


def a_plan() -> pb.PlanTurnResponse:
    return pb.PlanTurnResponse(
        decision=pb.DECISION_PULL,
        reason=pb.DECISION_REASON_HANDLE_AVAILABLE,
        prefill_engine_id="p1", decode_engine_id="d1",
        handle_id="d1/7", handle_tokens=32_000, session_key=session_key("chat"),
        candidates=[
            pb.Candidate(engine_id="d1", role=DECODE, endpoint="http://d1:1", score=1.0, home=True),
            pb.Candidate(engine_id="p1", role=PREFILL, endpoint="http://p1:1", load=3, score=-3.0),
            pb.Candidate(engine_id="p2", role=PREFILL, rejected_reason="draining"),
        ],
        estimates=[
            pb.CostEstimate(
                decision=pb.DECISION_PULL, pulled_tokens=32_000, computed_tokens=200,
                time=duration(0.0421),
            ),
            pb.CostEstimate(
                decision=pb.DECISION_RECOMPUTE, computed_tokens=32_200, time=duration(3.2)
            ),
        ],
    )  # fmt: skip


async def test_a_plan_is_told_with_its_reason_costs_and_candidates(
    world: World, tmp_path: Path
) -> None:
    world.router.plan = a_plan()
    body = tmp_path / "body.json"
    body.write_text('{"messages": []}')
    text = await world.told(
        "plan", "--session", "chat", "--model", "demo", "--tenant", "acme",
        "--request", str(body), "--prompt-tokens", "32200",
    )  # fmt: skip
    asked = world.router.asked[-1]
    assert (asked.session_id, asked.model, asked.tenant) == ("chat", "demo", "acme")
    assert (asked.openai_json, asked.prompt_tokens) == ('{"messages": []}', 32_200)
    assert text.startswith("PULL: a decode engine holds a handle")
    for expected in (
        "32,000 tokens, d1/7", "42.1 ms: 32,000 pulled, 200 computed", "0 pulled, 32,200 computed",
        "draining", "home", "http://p1:1",
    ):  # fmt: skip
        assert expected in text
    verdicts = {line.split()[0]: line.split()[-1] for line in text.splitlines()[-3:]}
    assert verdicts == {"d1": "chosen", "p1": "chosen", "p2": "draining"}
    document = await world.document("plan", "--session", "chat")
    assert document["candidates"][1]["load"] == 3
    assert document["estimates"][1]["seconds"] == pytest.approx(3.2)


async def test_a_key_of_the_tenant_goes_along(world: World) -> None:
    world.router.plan = a_plan()
    await world.told("plan", "--session", "chat")
    assert world.router.credentials == []
    world.environment["CONTRAFLOW_API_KEY"] = "key-1"
    await world.told("plan", "--session", "chat")
    await world.told("handles", "--session", "chat")
    assert world.router.credentials == ["Bearer key-1"] * 2
    world.router.error = Unauthenticated("The API key is not valid.")
    assert "CONTRAFLOW_API_KEY" in await world.failure("plan", "--session", "chat")


async def test_a_plan_that_can_not_be_made_says_where_to_look(world: World) -> None:
    world.router.error = NoEligibleEngine("no decode engine serves the model")
    failure = await world.failure("plan", "--session", "chat")
    assert "no decode engine serves the model" in failure
    assert "`contraflow ps`" in failure


# drain


async def draining(world: World) -> bool:
    known = await world.client.find_engine("decode-1")
    return known is not None and known.draining


async def test_drain_and_undo(world: World) -> None:
    world.decode.retain("a")
    await world.published(1)
    assert "1 handle may still be pulled" in await world.told("drain", "decode-1")
    await eventually(lambda: draining(world), "the directory knows")
    assert (await world.document("ps"))["engines"][0]["state"] == "draining"
    assert (await world.document("drain", "dec"))["draining"] is True
    assert "new turns again" in await world.told("drain", "decode-1", "--undo")

    async def serving() -> bool:
        return not await draining(world)

    await eventually(serving, "the directory knows")
    assert "no engine is called 'x'" in await world.failure("drain", "x")


async def test_drain_waits_until_the_engine_holds_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "POLL_SECONDS", 0.01)
    one, two = world.decode.retain("a"), world.decode.retain("b")
    await world.published(2)
    command = asyncio.create_task(world.run("drain", "decode-1", "--wait"))
    await eventually(lambda: draining(world), "the directory knows")
    world.decode.end(one, State.READ)
    assert not command.done()
    world.decode.end(two, State.EXPIRED)
    result = await command
    assert result.exit_code == 0
    assert "2 handles left" in result.stderr
    assert "it may be stopped" in result.stdout


async def test_an_engine_without_a_link_can_not_be_drained(world: World) -> None:
    await world.decode.detach()

    async def refused() -> bool:
        result = await world.run("drain", "decode-1")
        return "no live link" in result.stderr and result.exit_code == 1

    await eventually(refused, "the agent has noticed")


# release


async def test_release_tells_what_was_freed_and_what_was_left(world: World) -> None:
    free, claimed = world.decode.retain("free"), world.decode.retain("claimed")
    await world.published(2)
    await world.agent.acquire("c1", "claimed")
    ids = [free.handle_id, claimed.handle_id, "decode-1/gone", "nobody/1"]
    document = await world.document("release", *ids)
    assert {one["handle_id"]: one["outcome"] for one in document["handles"]} == {
        free.handle_id: "freed",
        claimed.handle_id: "left: claimed",
        "decode-1/gone": "gone already",
        "nobody/1": "left: no such engine",
    }
    text = await world.told("release", free.handle_id)
    assert "gone already" in text
    assert "0 handles freed, 1 not" in text


async def test_release_of_a_session_on_all_engines(world: World) -> None:
    mine = [world.decode.retain("chat"), world.prefill.retain("chat")]
    other = world.decode.retain("other")
    await world.known(*mine, other)
    world.router.plan = pb.PlanTurnResponse(session_key=session_key("chat"))
    assert "2 handles freed" in await world.told("release", "--session", "my chat")
    await world.known(other)


async def test_release_of_an_engine_asks_first(world: World) -> None:
    for number in range(3):
        world.decode.retain(f"s{number}")
    await world.published(3)
    for answer in ("n\n", ""):
        refused = await world.failure("release", "--engine", "decode-1", answer=answer)
        assert "nothing was freed" in refused
    assert len(await world.agent.handles()) == 3
    freed = await world.told("release", "--engine", "decode-1", answer="y\n")
    assert "3 handles freed, 0 not" in freed
    await world.known()
    assert "0 handles freed" in await world.told("release", "--engine", "decode-1", "--yes")


async def test_what_can_not_be_reached_does_not_hide_what_was_freed(world: World) -> None:
    handle, lost = world.decode.retain("a"), world.prefill.retain("b")
    await world.published(2)
    await world.prefill.detach()

    async def detached() -> bool:
        return bool((await world.document("ps"))["engines"][1]["state"] == "unattached")

    await eventually(detached, "the agent has noticed")
    result = await world.run("release", handle.handle_id, lost.handle_id)
    assert result.exit_code == 1
    assert "1 handle freed, 1 not" in result.stdout
    assert "left: engine not reached" in result.stdout
    assert result.stderr.startswith("contraflow: ")
