"""``contraflow handles``, once and with ``--watch``."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import replace

import pytest
from tests.integration.operator_cli.world import World
from tests.support.directory_content import free_address
from tests.support.fake_engine_link import engine, session_key
from tests.support.running_agent import eventually

from contraflow.core.errors import NoEligibleEngine
from contraflow.core.handle import State
from contraflow.v1 import router_service_pb2 as pb

pytestmark = pytest.mark.integration


async def test_handles_by_session_and_engine(world: World) -> None:
    handles = [world.decode.retain(name) for name in ("a", "b", "c")]
    handles.append(world.prefill.retain("a"))
    await world.agent.acquire("claim-1", "b")
    await world.known(*handles)
    found = (await world.document("handles"))["handles"]
    assert [one["state"] for one in found] == ["RETAINED", "CLAIMED", "RETAINED", "RETAINED"]
    assert found[1]["claim_id"] == "claim-1"
    # Lease and age are of one clock, and neither is older than the test.
    assert all(479 < one["ttl_seconds"] + one["age_seconds"] <= 481 for one in found)
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


async def test_handles_of_engines_that_are_not_attached_are_missed_aloud(world: World) -> None:
    world.decode.retain("a")
    await world.published(1)
    assert (await world.document("handles"))["unattached_engines"] == []
    await world.decode.detach()

    async def detached() -> bool:
        return bool((await world.document("handles"))["unattached_engines"] == ["decode-1"])

    await eventually(detached, "the agent has noticed")
    result = await world.run("handles")
    assert "decode-1 is not attached to its agent: its handles are not shown" in result.stderr
    result = await world.run("release", "--session", session_key("a"))
    assert "decode-1 is not attached to its agent: its handles are left alone" in result.stderr


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
