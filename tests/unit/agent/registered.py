"""One engine and its directory, on a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tests.support.clock import ManualClock
from tests.support.fake_engine_link import engine, session_key
from tests.unit.agent.test_mirror import handle

from contraflow.agent.attachment import Attachment
from contraflow.agent.codec import Introduction
from contraflow.agent.link import EngineLink
from contraflow.agent.registration import SETTLE_SECONDS, EngineRegistration
from contraflow.core.errors import (
    ContraflowError,
    InvalidArgument,
    RegistrationNotFound,
    RegistrationOutdated,
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
        self.sequence = 0
        self._count = 0

    async def find_engine(self, engine_id: str) -> Engine | None:
        self._maybe_fail()
        return self.engine

    async def register(
        self, engine: Engine, ttl: float, registration_id: str = "", sequence: int = 0
    ) -> Registration:
        self._maybe_fail()
        if self.alive() and sequence <= self.sequence:
            raise RegistrationOutdated("late", sequence=str(self.sequence))
        self.engine, self.sequence = engine, sequence
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
