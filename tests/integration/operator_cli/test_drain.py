"""``contraflow drain``."""

from __future__ import annotations

import asyncio

import pytest
from tests.integration.operator_cli.world import World
from tests.support.running_agent import eventually
from tests.support.wait import until

from contraflow.cli.operate import drain
from contraflow.cli.operate.output import note
from contraflow.core.handle import State

pytestmark = pytest.mark.integration


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


async def test_a_drain_that_releases_leaves_nothing_to_wait_for(world: World) -> None:
    handle = world.decode.retain("a")
    await world.published(1)
    assert "it may be stopped" in await world.told("drain", "decode-1", "--release", "--wait")
    assert world.decode.state_of(handle) is None


async def test_drain_waits_until_the_engine_holds_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "POLL_SECONDS", 0.01)
    one, two = world.decode.retain("a"), world.decode.retain("b")
    await world.published(2)
    notes: list[str] = []

    def noted(text: str) -> None:
        notes.append(text)
        note(text)

    monkeypatch.setattr(drain, "note", noted)
    command = asyncio.create_task(world.run("drain", "decode-1", "--wait"))
    await until(lambda: notes == ["decode-1: 2 handles left"], "both are seen")
    await eventually(lambda: draining(world), "the directory knows")
    world.decode.end(one, State.READ)
    await until(lambda: notes[1:] == ["decode-1: 1 handle left"], "one is seen, and waited for")
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
