"""What the directory tells its followers, against a full list: however often a watch breaks, the
store is lost, or the history is too short, in the end they know what there is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Any, cast

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, rule
from tests.support.clock import ManualClock

from contraflow.core.errors import RevisionCompacted, StoreUnavailable
from contraflow.core.fleet import Engine, Role, Session
from contraflow.directory.app import Directory, WatchStep
from contraflow.directory.config import LimitsConfig, LivenessConfig
from contraflow.directory.servicer import DirectoryServicer
from contraflow.directory.view import Event, Removal, View
from contraflow.runtime.fleet_replica import FleetReplica

HISTORY = 4
ENGINES, SESSIONS = ("e1", "e2"), ("1" * 32, "2" * 32, "3" * 32)


@dataclass
class Follower:
    """A replica and its watch, if it has one."""

    replica: FleetReplica
    watch: AsyncGenerator[WatchStep, None] | None = None
    pending: asyncio.Task[WatchStep] | None = None


class ViewMachine(RuleBasedStateMachine):
    """``engines`` and ``sessions`` are what is in the store."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.run(self._begin())

    async def _begin(self) -> None:
        self.clock = ManualClock()
        self.view = View(HISTORY)
        self.directory = Directory(
            cast(Any, None), self.view, cast(Any, None), self.clock,
            liveness=LivenessConfig(), limits=LimitsConfig(), progress_seconds=1.0,
        )  # fmt: skip
        self.servicer = DirectoryServicer(self.directory, self.clock)
        self.revision = 1
        self.engines: dict[str, Engine] = {}
        self.sessions: dict[str, Session] = {}
        self.view.resync([], 1)
        self.followers = [Follower(FleetReplica(self.clock)) for _ in range(2)]

    def run(self, call: Any) -> Any:
        return self.runner.run(call)

    def teardown(self) -> None:
        self.run(self._end())
        self.runner.close()

    def write(self, events: list[Event], *, unheard: bool = False) -> None:
        """A write of the store, of which the view hears if it follows."""
        if unheard:
            self.view.lost()
        self.revision += 1
        for event in events:
            if isinstance(event, Engine):
                self.engines[event.engine_id] = event
            elif isinstance(event, Session):
                self.sessions[event.session_key] = event
            else:
                self.engines.pop(event.engine_id, None)
                self.sessions.pop(event.session_key, None)
        if self.view.in_sync:
            self.view.apply(self.revision, events)
        if unheard:
            self.find_store()

    @rule(engine_id=st.sampled_from(ENGINES), port=st.integers(1, 3))
    def register(self, engine_id: str, port: int) -> None:
        self.write([Engine(engine_id, "n", Role.DECODE, f"http://h:{port}")])

    @rule(
        keys=st.lists(st.sampled_from(SESSIONS), min_size=1, unique=True),
        engine_id=st.sampled_from(ENGINES),
        number=st.integers(1, 3),
        unheard=st.booleans(),
    )
    def publish(self, keys: list[str], engine_id: str, number: int, unheard: bool) -> None:
        now = self.clock.now()
        handle_id = f"{engine_id}/{number}"
        self.write(
            [Session(key, engine_id, "a:1", handle_id, 16, now + 480, now) for key in keys],
            unheard=unheard,
        )

    @rule(engine_id=st.sampled_from(ENGINES), unheard=st.booleans())
    def leave(self, engine_id: str, unheard: bool) -> None:
        """An engine's lease ends, and all that is bound to it goes in one write."""
        bound = [key for key, one in self.sessions.items() if one.engine_id == engine_id]
        gone: list[Event] = [Removal(session_key=key) for key in bound]
        if engine_id in self.engines:
            gone.append(Removal(engine_id=engine_id))
        if gone:
            self.write(gone, unheard=unheard)

    @rule(key=st.sampled_from(SESSIONS))
    def withdraw(self, key: str) -> None:
        if key in self.sessions:
            self.write([Removal(session_key=key)])

    @rule()
    def foreign_write(self) -> None:
        """Of a record that this release does not know."""
        self.write([])

    @rule()
    def lose_store(self) -> None:
        self.view.lost()

    @rule()
    def find_store(self) -> None:
        content: list[Engine | Session] = [*self.engines.values(), *self.sessions.values()]
        self.view.resync(content, self.revision)

    @rule(back=st.integers(1, 5))
    def restore_store(self, back: int) -> None:
        """From a backup, whose revisions start anew. Followers are there to hear of it: who comes
        back later with a revision of before could not be told from one of the present."""
        self.run(self._hear_everything())
        self.view.lost()
        self.revision = max(1, self.revision - back)
        self.sessions = {}
        self.find_store()
        self.run(self._hear_everything())

    @rule(seconds=st.sampled_from([0.1, 3.0]))
    def wait(self, seconds: float) -> None:
        self.run(self._wait(seconds))

    async def _wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await _settled()

    @rule(number=st.integers(0, 1), most=st.sampled_from([1, 2, 3, 50]), cut=st.booleans())
    def follow(self, number: int, most: int, cut: bool) -> None:
        """A follower hears up to so many messages, and may then lose its watch."""
        self.run(self._follow(self.followers[number], most))
        if cut:
            self.run(self._cut(self.followers[number]))

    async def _follow(self, one: Follower, most: int) -> bool:
        """True once there was nothing more to hear."""
        for _ in range(most):
            if one.watch is None:
                one.replica.begin()
                one.watch = self.directory.watch(one.replica.resume_from)
            if one.pending is None:
                one.pending = asyncio.ensure_future(cast(Any, anext(one.watch)))
            await _settled()
            if not one.pending.done():
                return True
            ended, one.pending = one.pending, None
            try:
                one.replica.apply(self.servicer._response(ended.result()))
            except RevisionCompacted:
                one.watch = None
                one.replica.forget_revision()
            except StoreUnavailable:
                one.watch = None
                return False
        return False

    async def _cut(self, one: Follower) -> None:
        if one.pending is not None:
            one.pending.cancel()
            await asyncio.wait((one.pending,))
        if one.watch is not None:
            await one.watch.aclose()
        one.watch = one.pending = None

    @rule(number=st.integers(0, 1), handle=st.integers(4, 9))
    def cut_within_a_revision(self, number: int, handle: int) -> None:
        """A follower hears one of several changes that were one write, and no more."""
        self.run(self._hear_everything())
        self.publish(list(SESSIONS), ENGINES[number], handle, unheard=False)
        one = self.followers[number]
        self.run(self._follow(one, 1))
        self.run(self._cut(one))

    @rule()
    def settle(self) -> None:
        """Who hears everything knows everything."""
        self.run(self._settle())

    async def _end(self) -> None:
        await self._settle()
        for one in self.followers:
            await self._cut(one)
        assert self.directory.watchers == 0

    async def _settle(self) -> None:
        await self._hear_everything()
        assert (self.view.engines, self.view.sessions) == (self.engines, self.sessions)
        for one in self.followers:
            assert one.replica.engines == self.engines
            known = one.replica.sessions
            assert known.keys() == self.sessions.keys()
            for key, session in self.sessions.items():
                assert known[key].says_the_same(replace(session))

    async def _hear_everything(self) -> None:
        if not self.view.in_sync:
            self.find_store()
        for one in self.followers:
            while not await self._follow(one, 50):
                pass


async def _settled() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


TestView = ViewMachine.TestCase
TestView.settings = settings(deadline=None, stateful_step_count=50)
