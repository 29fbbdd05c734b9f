"""Keeping one engine in the directory: its lease and its identity."""

from __future__ import annotations

from tests.support.fake_engine_link import engine
from tests.unit.agent.registered import TTL, World

from contraflow.agent.codec import Introduction
from contraflow.agent.link import EngineLink
from contraflow.core.errors import EngineIdReused, StoreUnavailable


async def test_the_lease_lives_as_long_as_the_engine_is_attached() -> None:
    world = World()
    async with world.running():
        for _ in range(10):
            await world.idle(TTL / 3)
            assert world.directory.alive()
            assert world.directory.sessions == world.expected()
    world.clock.advance(TTL)
    assert not world.directory.alive()


async def test_an_engine_whose_server_is_not_up_is_not_registered() -> None:
    world = World()
    world.healthy = False
    async with world.running():
        await world.idle(5.0)
        assert not world.directory.alive()
        world.healthy = True
        await world.idle(5.0)
        assert world.directory.alive()


async def test_a_lapsed_registration_is_made_anew_with_everything() -> None:
    world = World(sessions=3)
    async with world.running():
        await world.idle(0.0)
        world.directory.lose()
        await world.idle(TTL / 3)  # the renewal finds it out
        await world.idle(TTL / 3)  # after a short delay all is back
        assert world.directory.alive()
        assert world.directory.sessions == world.expected()


async def test_failures_are_retried_for_ever_and_nothing_is_lost() -> None:
    world = World(sessions=2)
    world.directory.failure = StoreUnavailable("down")
    async with world.running():
        for _ in range(50):
            await world.idle(TTL)
        assert not world.directory.alive()
        world.directory.failure = None
        await world.idle(TTL / 3)
        assert world.directory.sessions == world.expected()


async def test_a_reused_id_is_told_and_registered_once_the_other_is_gone() -> None:
    world = World()
    world.directory.failure = EngineIdReused("alive elsewhere")
    async with world.running():
        await world.idle(0.0)
        assert set(world.reused) == {"e"}
        world.directory.failure = None
        await world.idle(TTL / 3)
        assert world.directory.alive()


async def test_an_engine_back_within_the_ttl_continues_its_registration() -> None:
    world = World()
    async with world.running():
        await world.idle(0.0)
    first = world.directory.lease
    world.clock.advance(TTL * 2 / 3)
    async with world.running():
        await world.idle(0.0)
        assert first is not None
        assert world.directory.lease is not None
        assert world.directory.lease.registration_id == first.registration_id
        assert world.directory.batches == [1]


async def test_a_changed_engine_keeps_its_registration_and_its_sessions() -> None:
    world = World()
    async with world.running():
        await world.idle(0.0)
        moved = engine("e", endpoint="http://127.0.0.1:10")
        world.attachment.linked(EngineLink(2), Introduction(moved, world.handles))
        world.attachment.drain(True)
        await world.idle(0.0)
        told = world.directory.engine
        assert told is not None
        assert (told.endpoint, told.draining) == (moved.endpoint, True)
        assert world.directory.sessions == world.expected()
        assert world.directory.batches == [1]


async def test_an_agent_that_has_started_anew_registers_above_what_is_recorded() -> None:
    world = World(sessions=2)
    known = await world.directory.register(engine(), TTL, "", 41)
    async with world.running():
        await world.idle(TTL / 3)
        assert world.directory.lease != known
        assert world.directory.sequence == 42
        assert world.directory.sessions == world.expected()


async def test_the_end_takes_engine_and_sessions_out() -> None:
    world = World()
    async with world.running():
        await world.idle(0.0)
    await world.registration.end()
    assert not world.directory.alive()
    await world.registration.end()
