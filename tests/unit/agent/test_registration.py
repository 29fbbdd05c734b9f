"""Keeping one engine in the directory, on a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.support.clock import ManualClock
from tests.support.fake_engine_link import engine, session_key
from tests.unit.agent.test_mirror import handle

from contraflow.agent.attachment import Attachment
from contraflow.agent.codec import Introduction
from contraflow.agent.link import EngineLink
from contraflow.agent.registration import BATCH, SETTLE_SECONDS, EngineRegistration
from contraflow.core.errors import (
    ContraflowError,
    EngineIdReused,
    InvalidArgument,
    RegistrationNotFound,
    StoreUnavailable,
)
from contraflow.core.fleet import Engine, Session
from contraflow.core.handle import State
from contraflow.runtime.directory_client import Registration
from contraflow.v1 import engine_link_service_pb2 as link_pb
from contraflow.v1 import handle_pb2
from contraflow.wire.convert import duration

TTL = 9.0


class Directory:
    """Behaves as the directory does, for one registration at a time."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.lease: Registration | None = None
        self.sessions: dict[str, str] = {}
        self.batches: list[int] = []
        self.failure: ContraflowError | None = None
        self.refused: set[str] = set()
        self.engine: Engine | None = None
        self._count = 0

    async def find_engine(self, engine_id: str) -> Engine | None:
        self._maybe_fail()
        return self.engine

    async def register(self, engine: Engine, ttl: float, registration_id: str = "") -> Registration:
        self._maybe_fail()
        self.engine = engine
        if self.alive() and self.lease and self.lease.registration_id == registration_id:
            return await self.renew(registration_id)
        self._count += 1
        self.sessions.clear()
        self.lease = Registration(f"r{self._count}", ttl, self.clock.now() + ttl)
        return self.lease

    async def renew(self, registration_id: str) -> Registration:
        self._maybe_fail()
        self.require(registration_id)
        self.lease = Registration(registration_id, TTL, self.clock.now() + TTL)
        return self.lease

    async def deregister(self, registration_id: str) -> None:
        self._maybe_fail()
        if self.lease and self.lease.registration_id == registration_id:
            self.lose()

    async def publish(
        self, registration_id: str, sessions: Sequence[Session]
    ) -> list[ContraflowError | None]:
        self._maybe_fail()
        self.require(registration_id)
        self.batches.append(len(sessions))
        outcomes: list[ContraflowError | None] = []
        for session in sessions:
            if session.session_key in self.refused:
                outcomes.append(InvalidArgument("no"))
                continue
            self.sessions[session.session_key] = session.handle_id
            outcomes.append(None)
        return outcomes

    async def withdraw(self, ended: Sequence[tuple[str, str]]) -> list[ContraflowError | None]:
        self._maybe_fail()
        for key, handle_id in ended:
            if self.sessions.get(key) == handle_id:
                del self.sessions[key]
        return [None] * len(ended)

    def lose(self) -> None:
        """The lease has run out, or the content is lost."""
        self.lease = None
        self.sessions.clear()

    def alive(self) -> bool:
        return self.lease is not None and self.lease.expires_at > self.clock.now()

    def require(self, registration_id: str) -> None:
        if not self.alive() or self.lease is None or self.lease.registration_id != registration_id:
            raise RegistrationNotFound("lapsed")

    def _maybe_fail(self) -> None:
        if self.failure is not None:
            raise self.failure


class World:
    def __init__(self, sessions: int = 1) -> None:
        self.clock = ManualClock()
        self.directory = Directory(self.clock)
        self.healthy = True
        self.reused: list[str] = []
        self.attachment = Attachment(
            engine("e"), self.clock, lambda outcome, report: None, lambda handle: None
        )
        self.handles = [
            handle(str(number), session_key(str(number)), expires_at=1e9)
            for number in range(sessions)
        ]
        self.attachment.linked(EngineLink(1), Introduction(engine("e"), self.handles))
        self.registration = EngineRegistration(
            self.attachment,
            self.directory,
            self.clock,
            is_healthy=self._is_healthy,
            agent_address="agent:1",
            ttl=TTL,
            on_id_reused=self.reused.append,
        )

    async def _is_healthy(self, endpoint: str) -> bool:
        return self.healthy

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.registration.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def idle(self, since: float) -> None:
        """Move on to ``since`` seconds from now and a little more, for what has changed to
        settle, and wait until the registration waits."""
        for seconds in (since, SETTLE_SECONDS):
            await self.clock.wait_for_sleepers()
            self.clock.advance(seconds)
            for _ in range(20):
                await asyncio.sleep(0)
        await self.clock.wait_for_sleepers()

    def tell(self, name: str, state: State = State.RETAINED, session: str = "") -> None:
        """The engine tells of a handle; of its session, by default, there is no other."""
        one = handle(name, session_key(session or name))
        told = handle_pb2.Handle(
            handle_id=one.handle_id,
            engine_id="e",
            tenant=one.tenant,
            session_key=one.session_key,
            ttl=duration(1000),
            state=f"HANDLE_STATE_{state}",
        )
        self.attachment.on_event(link_pb.HandleUpdate(handle=told))

    def expected(self) -> dict[str, str]:
        return {one.session_key: one.handle_id for one in self.handles}


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


async def test_a_change_after_the_lease_has_run_out_publishes_everything_again() -> None:
    world = World()
    async with world.running():
        await world.idle(0.0)
        world.directory.lose()
        world.attachment.drain(True)
        await world.idle(0.0)
        assert world.directory.sessions == world.expected()


async def test_the_end_takes_engine_and_sessions_out() -> None:
    world = World()
    async with world.running():
        await world.idle(0.0)
    await world.registration.end()
    assert not world.directory.alive()
    await world.registration.end()


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
