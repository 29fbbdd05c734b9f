"""Use cases of the directory on the memory store, its clock in the test's hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import pytest
from tests.support.clock import ManualClock

from contraflow.core.errors import (
    EngineIdReused,
    InvalidArgument,
    NotFound,
    RegistrationNotFound,
    RegistrationOutdated,
    RevisionCompacted,
)
from contraflow.core.fleet import Engine, Role, Session
from contraflow.directory.app import Directory, Mark, WatchStep
from contraflow.directory.config import LimitsConfig, LivenessConfig
from contraflow.directory.feed import follow_store
from contraflow.directory.records import Records
from contraflow.directory.view import Removal, View
from contraflow.store.memory import MemoryStore

KEY = "0123456789abcdef" * 2


class World:
    def __init__(self, history: int = 100) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.view = View(history)
        self.records = Records("test", self.clock)
        self.directory = Directory(
            self.store, self.view, self.records, self.clock,
            liveness=LivenessConfig(), limits=LimitsConfig(max_batch_items=3),
            progress_seconds=5.0,
        )  # fmt: skip
        self.feed = asyncio.create_task(
            follow_store(self.store, self.records, self.view, self.clock)
        )

    async def close(self) -> None:
        self.feed.cancel()
        await self.store.close()

    async def settle(self) -> None:
        """The view has everything that the store has."""
        _, revision = await self.store.list("")
        async with asyncio.timeout(20):
            await self.view.filled.wait()
            while self.view.revision < revision:
                await self.view.news.wait()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.view.filled.wait()
    yield world
    await world.close()


def engine(name: str = "e1", nonce: str = "n1", draining: bool = False) -> Engine:
    return Engine(
        name, nonce, Role.DECODE, "http://127.0.0.1:1", agent_address="127.0.0.1:2",
        block_size=16, draining=draining,
    )  # fmt: skip


def session(
    world: World, handle: str = "h1", key: str = KEY, *, at: str = "e1", age: float = 0.0
) -> Session:
    now = world.clock.now()
    return Session(key, at, "127.0.0.1:2", handle, 100, now + 60, now - age)


async def steps(watch: AsyncGenerator[WatchStep, None], count: int) -> list[object]:
    async with asyncio.timeout(20):
        return [(await anext(watch)).event for _ in range(count)]


async def test_a_registered_engine_is_listed_until_its_lease_ends(world: World) -> None:
    _, ttl = await world.directory.register(engine(), 10)
    assert ttl == 10
    await world.settle()
    assert world.directory.get_engine("e1") == engine()
    assert world.directory.list_engines(0, "") == ([engine()], "")
    await world.clock.wait_for_sleepers()
    world.clock.advance(10)
    async with asyncio.timeout(20):
        await world.view.news.wait()
    with pytest.raises(NotFound):
        world.directory.get_engine("e1")


async def test_renewal_counts_from_the_call(world: World) -> None:
    registration, _ = await world.directory.register(engine(), 10)
    world.clock.advance(9)
    assert await world.directory.renew(registration) == 10
    world.clock.advance(9)
    assert await world.directory.renew(registration) == 10
    world.clock.advance(10)
    with pytest.raises(RegistrationNotFound):
        await world.directory.renew(registration)


@pytest.mark.parametrize(("wished", "granted"), [(None, 10), (0.0, 1), (9999.0, 300)])
async def test_ttl_is_clamped(world: World, wished: float | None, granted: float) -> None:
    assert (await world.directory.register(engine(), wished))[1] == granted


async def test_another_nonce_is_refused_while_the_id_is_alive(world: World) -> None:
    registration, _ = await world.directory.register(engine(), 10)
    with pytest.raises(EngineIdReused):
        await world.directory.register(engine(nonce="n2"), 10)
    await world.directory.deregister(registration)
    await world.directory.register(engine(nonce="n2"), 10)


async def test_the_same_nonce_replaces_and_ends_the_old_registration(world: World) -> None:
    old, _ = await world.directory.register(engine(), 10)
    await world.directory.publish(old, [session(world)])
    new, _ = await world.directory.register(engine(draining=True), 10)
    await world.settle()
    assert world.directory.get_engine("e1").draining
    with pytest.raises(NotFound):
        world.directory.get_session(KEY)
    with pytest.raises(RegistrationNotFound):
        await world.directory.renew(old)
    assert await world.directory.renew(new) == 10


async def test_a_registration_that_is_named_goes_on_with_its_sessions(world: World) -> None:
    old, _ = await world.directory.register(engine(), 10)
    await world.directory.publish(old, [session(world)])
    world.clock.advance(9)
    assert await world.directory.register(engine(draining=True), 10, old) == (old, 10)
    world.clock.advance(9)
    await world.settle()
    assert world.directory.get_engine("e1").draining
    assert world.directory.get_session(KEY).handle_id == "h1"


async def test_a_registration_that_comes_late_puts_nothing_back(world: World) -> None:
    known, _ = await world.directory.register(engine(), 10, "", 1)
    await world.directory.register(engine(draining=True), 10, known, 2)
    await world.directory.register(engine(), 10, known, 3)
    for named in (known, ""):
        with pytest.raises(RegistrationOutdated) as caught:
            await world.directory.register(engine(draining=True), 10, named, 2)
        assert caught.value.metadata == {"sequence": "3"}
    await world.settle()
    assert not world.directory.get_engine("e1").draining
    assert await world.directory.renew(known) == 10


async def test_one_sequence_for_two_things_is_refused(world: World) -> None:
    # An agent that has started anew counts as the one before it did.
    await world.directory.register(engine(), 10, "", 1)
    with pytest.raises(RegistrationOutdated):
        await world.directory.register(engine(draining=True), 10, "", 1)
    await world.directory.register(engine(draining=True), 10, "", 2)
    await world.settle()
    assert world.directory.get_engine("e1").draining


async def test_a_registration_whose_answer_was_lost_is_granted_again(world: World) -> None:
    lost, _ = await world.directory.register(engine(), 10, "", 1)
    known, _ = await world.directory.register(engine(), 10, "", 1)
    assert await world.directory.renew(known) == 10
    with pytest.raises(RegistrationNotFound):
        await world.directory.renew(lost)
    assert await world.directory.register(engine(), 10, known, 1) == (known, 10)


async def test_an_agent_that_counts_as_the_one_before_takes_over_no_sessions(world: World) -> None:
    # It does not know of them: what has ended meanwhile would stay.
    old, _ = await world.directory.register(engine(), 10, "", 1)
    await world.directory.publish(old, [session(world)])
    await world.directory.register(engine(), 10, "", 1)
    await world.settle()
    with pytest.raises(NotFound):
        world.directory.get_session(KEY)


@pytest.mark.parametrize("named", ["another", "lapsed", "no number"])
async def test_a_registration_that_can_not_go_on_is_replaced(world: World, named: str) -> None:
    ids = {"no number": "xyz"}
    ids["lapsed"], _ = await world.directory.register(engine(), 10)
    world.clock.advance(11)
    ids["another"], _ = await world.directory.register(engine("e2"), 10)
    new, _ = await world.directory.register(engine(), 10, ids[named])
    assert new not in ids.values()
    assert await world.directory.renew(new) == 10
    assert await world.directory.renew(ids["another"]) == 10


@pytest.mark.parametrize("name", ["", "a/b", "a\n"])
async def test_bad_engine_ids_are_refused(world: World, name: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await world.directory.register(engine(name), None)
    assert caught.value.metadata == {"field": "engine.engine_id"}


async def test_sessions_go_with_the_registration(world: World) -> None:
    registration, _ = await world.directory.register(engine(), 10)
    outcomes, revision = await world.directory.publish(registration, [session(world)])
    assert outcomes == [None]
    await world.settle()
    assert world.view.revision >= revision
    assert world.directory.get_session(KEY) == session(world)
    await world.directory.deregister(registration)
    await world.directory.deregister(registration)
    await world.settle()
    with pytest.raises(NotFound):
        world.directory.get_session(KEY)


async def test_each_session_has_its_own_outcome(world: World) -> None:
    registration, _ = await world.directory.register(engine(), 10)
    good, bad = session(world), session(world, key="x")
    outcomes, _ = await world.directory.publish(registration, [bad, good])
    assert [type(outcome) for outcome in outcomes] == [InvalidArgument, type(None)]
    outcomes, _ = await world.directory.publish("77", [bad, good])
    assert [type(outcome) for outcome in outcomes] == [InvalidArgument, RegistrationNotFound]
    outcomes, _ = await world.directory.publish("nonsense", [good])
    assert [type(outcome) for outcome in outcomes] == [RegistrationNotFound]


@pytest.mark.parametrize(
    ("age", "kept"), [(10.1, "home"), (9.9, "former")], ids=["of an old handle", "of a new one"]
)
async def test_a_former_home_takes_a_session_back_only_with_a_new_handle(
    world: World, age: float, kept: str
) -> None:
    former, _ = await world.directory.register(engine("e1"), 10)
    home, _ = await world.directory.register(engine("e2"), 10)
    await world.directory.publish(home, [session(world, "home", at="e2", age=60.0)])
    await world.settle()
    outcomes, _ = await world.directory.publish(former, [session(world, "former", age=age)])
    await world.settle()
    assert outcomes == [None]
    assert world.directory.get_session(KEY).handle_id == kept


async def test_an_engine_goes_back_to_its_older_handle_and_takes_over_from_one_that_is_gone(
    world: World,
) -> None:
    former, _ = await world.directory.register(engine("e1"), 10)
    home, _ = await world.directory.register(engine("e2"), 10)
    await world.directory.publish(home, [session(world, "new", at="e2", age=5.0)])
    await world.settle()
    await world.directory.publish(home, [session(world, "branch", at="e2", age=60.0)])
    await world.settle()
    assert world.directory.get_session(KEY).handle_id == "branch"
    await world.directory.deregister(home)
    await world.settle()
    await world.directory.publish(former, [session(world, "old", age=20.0)])
    await world.settle()
    assert world.directory.get_session(KEY).handle_id == "old"


async def test_a_batch_too_large_is_refused(world: World) -> None:
    with pytest.raises(InvalidArgument):
        await world.directory.publish("1", [session(world)] * 4)
    with pytest.raises(InvalidArgument):
        await world.directory.withdraw([(KEY, "h")] * 4)


async def test_withdrawal_spares_a_newer_handle(world: World) -> None:
    registration, _ = await world.directory.register(engine(), 10)
    await world.directory.publish(registration, [session(world, "h2")])
    assert await world.directory.withdraw([(KEY, "h1"), ("f" * 32, "h1")]) == [None, None]
    await world.settle()
    assert world.directory.get_session(KEY).handle_id == "h2"
    await world.directory.withdraw([(KEY, "h2")])
    await world.settle()
    with pytest.raises(NotFound):
        world.directory.get_session(KEY)


async def test_watch_snapshot_then_deltas_then_progress(world: World) -> None:
    registration, _ = await world.directory.register(engine(), 60)
    await world.settle()
    async with aclosing(world.directory.watch(0)) as watch:
        assert await steps(watch, 2) == [engine(), Mark.SNAPSHOT_END]
        await world.directory.publish(registration, [session(world)])
        assert await steps(watch, 1) == [session(world)]
        pending = asyncio.ensure_future(anext(watch))
        await world.clock.wait_for_sleepers(2)
        world.clock.advance(5)
        assert (await pending).event is Mark.PROGRESS
        await world.directory.deregister(registration)
        gone = await steps(watch, 2)
    assert set(gone) == {Removal(engine_id="e1"), Removal(session_key=KEY)}
    assert world.directory.watchers == 0


async def test_a_watch_resumes_without_loss(world: World) -> None:
    await world.directory.register(engine(), 60)
    await world.settle()
    async with aclosing(world.directory.watch(0)) as watch:
        await steps(watch, 1)
        seen = (await anext(watch)).revision
    await world.directory.register(engine("e2"), 60)
    await world.directory.register(engine("e3"), 60)
    await world.settle()
    async with aclosing(world.directory.watch(seen)) as watch:
        assert await steps(watch, 2) == [engine("e2"), engine("e3")]


async def test_a_slow_watcher_is_cut() -> None:
    world = World(history=2)
    await world.view.filled.wait()
    async with aclosing(world.directory.watch(0)) as watch:
        assert await steps(watch, 1) == [Mark.SNAPSHOT_END]
        for number in range(4):
            await world.directory.register(engine(f"e{number}"), 60)
        await world.settle()
        with pytest.raises(RevisionCompacted):
            await steps(watch, 1)
    await world.close()


async def test_records_of_no_meaning_are_skipped(world: World) -> None:
    await world.store.put({"test/engines/e9": b"\xff", "test/other": b"1"})
    await world.store.put({"test/sessions/" + KEY: b"\xff"})
    await world.directory.register(engine(), 60)
    await world.settle()
    assert set(world.view.engines) == {"e1"}
    assert not world.view.sessions


@pytest.mark.parametrize("seconds", [1e300, 9.3e18])
async def test_a_session_without_end_or_beginning_is_published(
    world: World, seconds: float
) -> None:
    registration, _ = await world.directory.register(engine(), None)
    now = world.clock.now()
    session = Session(KEY, "e1", "a:1", "e1/1", 16, now + seconds, now - seconds)
    [outcome], _ = await world.directory.publish(registration, [session])
    assert outcome is None
    await world.settle()
    assert world.directory.get_session(KEY).handle_id == "e1/1"
