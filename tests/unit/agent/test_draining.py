"""A drain is told to the directory, and outlives an agent's restart."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.fake_engine_link import engine
from tests.unit.agent.registered import TTL, World

from contraflow.core.errors import StoreUnavailable
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

    async def drained_meanwhile(one: Engine, ttl: float, known: str, sequence: int) -> Registration:
        registration = await register(one, ttl, known, sequence)
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


async def test_a_drain_is_recorded_once_the_directory_has_it() -> None:
    world = World()
    attachment, directory = world.attachment, world.directory

    async def recorded(draining: bool) -> bool:
        attachment.drain(draining)
        await world.idle(0.0)
        return await attachment.drain_recorded(0.0)

    async with world.running():
        await world.idle(0.0)
        assert await recorded(True)
        directory.failure = StoreUnavailable("no leader")
        assert not await recorded(False)
        assert not await recorded(True)  # the other may have been heard all the same
        directory.failure = None
        await world.idle(TTL / 3)
        assert await attachment.drain_recorded(0.0)
        assert directory.engine is not None
        assert directory.engine.draining
        attachment.drain(False)
        assert await recorded(True)  # before anybody was told of the other


async def test_an_order_that_was_heard_without_an_answer_is_told_again_if_it_changes() -> None:
    world = World()
    directory, register = world.directory, world.directory.register

    async def loses_the_answer(one: Engine, ttl: float, known: str, sequence: int) -> Registration:
        await register(one, ttl, known, sequence)
        raise StoreUnavailable("no answer")

    async with world.running():
        await world.idle(0.0)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(directory, "register", loses_the_answer)
            world.attachment.drain(True)
            await world.idle(0.0)
        world.attachment.drain(False)
        await world.idle(TTL / 3)
        assert directory.engine is not None
        assert not directory.engine.draining
