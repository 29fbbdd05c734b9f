"""A drain is told to the directory, and outlives an agent's restart."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.fake_engine_link import engine
from tests.unit.agent.registered import TTL, World

from contraflow.core.fleet import Engine
from contraflow.runtime.directory_client import Registration


async def test_a_drain_is_told_to_the_directory_at_once_and_again_after_its_loss() -> None:
    world = World(sessions=2)

    def told() -> bool:
        return world.directory.engine is not None and world.directory.engine.draining

    async with world.running():
        await world.idle(0.0)
        assert not told()
        world.attachment.drain(True)
        await world.idle(0.0)
        assert told()
        assert world.directory.sessions == world.expected()
        world.directory.lose()
        world.directory.engine = None
        await world.idle(TTL / 3)
        await world.idle(TTL / 3)
        assert told()
        world.attachment.drain(False)
        await world.idle(0.0)
        assert not told()


async def test_a_drain_that_is_ordered_while_the_engine_is_registered_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    register = world.directory.register

    async def drained_meanwhile(one: Engine, ttl: float, known: str = "") -> Registration:
        registration = await register(one, ttl, known)
        if not one.draining:
            world.attachment.drain(True)
        return registration

    monkeypatch.setattr(world.directory, "register", drained_meanwhile)
    async with world.running():
        await world.idle(0.0)
        assert world.directory.engine is not None
        assert world.directory.engine.draining


@pytest.mark.parametrize(("nonce", "resumed"), [("nonce-1", True), ("another", False)])
async def test_an_agent_that_starts_again_goes_on_draining_the_same_incarnation(
    nonce: str, resumed: bool
) -> None:
    world = World()
    world.directory.engine = replace(engine("e", boot_nonce=nonce), draining=True)
    async with world.running():
        await world.idle(0.0)
        assert world.directory.engine.draining is resumed
        assert world.attachment.engine.draining is resumed
