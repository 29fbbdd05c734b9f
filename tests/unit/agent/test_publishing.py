"""Keeping an engine's sessions in the directory."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.fake_engine_link import engine, session_key
from tests.unit.agent.registered import TTL, World

from contraflow.agent.codec import Introduction
from contraflow.agent.link import EngineLink
from contraflow.agent.registration import BATCH
from contraflow.core.errors import RegistrationNotFound, StoreUnavailable
from contraflow.core.handle import State


async def test_a_publication_without_an_answer_can_not_come_true_later() -> None:
    """As of a member of etcd that stood still: it does what it was asked once it goes on."""
    world = World(sessions=2)
    async with world.running():
        await world.idle(0.0)
        lease = world.directory.lease
        assert lease is not None
        world.directory.failure = StoreUnavailable("no answer")
        world.tell("new", session="0")
        await world.idle(0.0)
        world.directory.failure = None
        await world.idle(TTL / 9)
        world.tell("new", State.READ, session="0")
        await world.idle(0.0)
        with pytest.raises(RegistrationNotFound):
            world.directory.require(lease.registration_id)
        assert world.directory.alive()
        assert world.directory.sessions == world.expected()


async def test_many_sessions_go_in_batches() -> None:
    world = World(sessions=2 * BATCH + 1)
    async with world.running():
        await world.idle(0.0)
        assert world.directory.batches == [BATCH, BATCH, 1]
        assert world.directory.sessions == world.expected()


async def test_a_change_is_sent_alone_and_with_what_comes_right_behind_it() -> None:
    world = World(sessions=2 * BATCH)
    async with world.running():
        await world.idle(0.0)
        world.directory.batches.clear()
        world.tell("new", session="0")
        for _ in range(20):
            await asyncio.sleep(0)
        world.tell("another")
        world.tell("0", State.RELEASED)
        await world.idle(0.0)
        assert world.directory.batches == [2]
        world.tell("new", State.READ, session="0")
        await world.idle(0.0)
        assert world.directory.batches == [2]
        del world.handles[0]
        assert world.directory.sessions == world.expected() | {session_key("another"): "e/another"}


async def test_what_changed_while_the_directory_was_away_is_told_once_it_is_back() -> None:
    world = World(sessions=3)
    async with world.running():
        await world.idle(0.0)
        world.directory.failure = StoreUnavailable("down")
        world.tell("0", State.READ)
        await world.idle(TTL / 9)
        world.tell("new", session="1")
        await world.idle(TTL / 9)
        world.directory.failure = None
        await world.idle(TTL / 3)
        assert world.directory.sessions == {
            session_key("1"): "e/new",
            session_key("2"): "e/2",
        }


async def test_what_changed_while_the_engine_was_detached_is_told_once_it_is_back() -> None:
    world = World(sessions=3)
    async with world.running():
        await world.idle(0.0)
    world.attachment.linked(EngineLink(2), Introduction(engine("e"), world.handles[1:]))
    async with world.running():
        await world.idle(0.0)
        del world.handles[0]
        assert world.directory.sessions == world.expected()
        assert world.directory.batches == [3]


async def test_what_the_directory_refuses_is_not_offered_without_end() -> None:
    world = World(sessions=2)
    refused = session_key("0")
    world.directory.refused = {refused}
    async with world.running():
        for _ in range(5):
            await world.idle(TTL / 3)
        assert world.directory.batches == [2]
        assert world.directory.sessions == {session_key("1"): "e/1"}


async def test_a_change_after_the_lease_has_run_out_publishes_everything_again() -> None:
    world = World()
    async with world.running():
        await world.idle(0.0)
        world.directory.lose()
        world.attachment.drain(True)
        await world.idle(0.0)
        assert world.directory.sessions == world.expected()
