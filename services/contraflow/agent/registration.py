"""One engine in the directory: registered, renewed, its sessions published."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol

import structlog

from contraflow.agent.attachment import Attachment
from contraflow.agent.batches import batches
from contraflow.agent.publisher import Publication, Withdrawal, session_of
from contraflow.core.errors import (
    ContraflowError,
    EngineIdReused,
    InvalidArgument,
    RegistrationNotFound,
    RegistrationOutdated,
)
from contraflow.core.fleet import Engine, Session
from contraflow.runtime.backoff import Backoff
from contraflow.runtime.clock import Clock, happens
from contraflow.runtime.directory_client import Registration

log = structlog.get_logger()

BATCH = 100
"""Records in one call to the directory."""

SETTLE_SECONDS = 0.02
"""Between a change and the call for it: an engine tells of a new handle and of those that it
supersedes one by one, and all of them are one record."""

_LONGEST_HEALTH_DELAY = 1.0  # seconds between probes of an engine that is starting


class Directory(Protocol):
    """What of ``runtime.directory_client.DirectoryClient`` is needed here."""

    async def find_engine(self, engine_id: str) -> Engine | None: ...
    async def register(
        self, engine: Engine, ttl: float, registration_id: str = "", sequence: int = 0
    ) -> Registration: ...
    async def renew(self, registration_id: str) -> Registration: ...
    async def deregister(self, registration_id: str) -> None: ...
    async def publish(
        self, registration_id: str, sessions: Sequence[Session]
    ) -> list[ContraflowError | None]: ...
    async def withdraw(self, ended: Sequence[tuple[str, str]]) -> list[ContraflowError | None]: ...


class EngineRegistration:
    """``run`` it while the engine is attached. What it has published it remembers in between,
    so that an engine back within the TTL continues its registration."""

    def __init__(
        self,
        attachment: Attachment,
        directory: Directory,
        clock: Clock,
        *,
        is_healthy: Callable[[str], Awaitable[bool]],
        agent_address: str,
        ttl: float,
        on_id_reused: Callable[[str], None],
    ) -> None:
        self._attachment = attachment
        self._directory = directory
        self._clock = clock
        self._is_healthy = is_healthy
        self._agent_address = agent_address
        self._ttl = ttl
        self._on_id_reused = on_id_reused
        self._publication = Publication()
        self._registration: Registration | None = None
        self._registered: Engine | None = None
        self._renew_at = 0.0
        self._sequence = 0
        """Of the last registration: one without an answer may be carried out late, and must not
        put back what was told after it."""
        self._in_doubt = False
        """A publication has had no answer. It may still be carried out, however late, and over
        what came after it: under a lease that has ended it can not."""

    async def run(self) -> None:
        """Keep the directory current until cancelled, through every failure of it."""
        if self._registration is None:
            await self._until_healthy()
        backoff = Backoff(maximum=self._ttl / 3)
        while True:
            try:
                self._publication.note(self._attachment.take_changes())
                registration_id = await self._hold_lease()
                if self._registered is not None:
                    self._attachment.recorded(self._registered)
                await self._publish(registration_id)
            except ContraflowError as error:
                self._note(error)
                await self._clock.sleep(backoff.next())
            else:
                backoff.reset()
                await self._until_due()

    async def end(self) -> None:
        """Take the engine out of the directory, if it answers; else the lease runs out."""
        registration, self._registration = self._registration, None
        self._forget()
        if registration is None:
            return
        try:
            await self._directory.deregister(registration.registration_id)
        except ContraflowError as error:
            self._note(error)

    async def _until_healthy(self) -> None:
        backoff = Backoff(maximum=_LONGEST_HEALTH_DELAY)
        while not await self._is_healthy(self._attachment.engine.endpoint):
            await self._clock.sleep(backoff.next())

    async def _resume_drain(self) -> None:
        # An agent that starts again must not put back what an operator has taken out.
        known = await self._directory.find_engine(self._attachment.engine.engine_id)
        if known and known.draining and known.boot_nonce == self._attachment.engine.boot_nonce:
            self._attachment.resume_drain()

    async def _hold_lease(self) -> str:
        registration = self._registration
        if registration is None:
            await self._resume_drain()
        engine = replace(self._attachment.engine, agent_address=self._agent_address)
        if registration is None or engine != self._registered or self._in_doubt:
            known = registration.registration_id if registration and not self._in_doubt else ""
            self._registered = None  # without an answer it is one or the other
            self._sequence += 1
            registration = await self._directory.register(engine, self._ttl, known, self._sequence)
            self._in_doubt = False
            if registration.registration_id != known:
                # Records of an earlier lease end with it. Cancelled in the call, we learn that
                # the known one has ended when we renew it.
                self._forget()
            self._registered = engine
            log.info("engine_registered", engine_id=engine.engine_id, ttl=registration.ttl)
        elif self._clock.now() >= self._renew_at:
            registration = await self._directory.renew(registration.registration_id)
        else:
            return registration.registration_id
        self._registration = registration
        self._renew_at = registration.expires_at - registration.ttl * 2 / 3
        return registration.registration_id

    def _forget(self) -> None:
        self._publication.forget()
        self._publication.note(self._attachment.mirror.session_keys())

    async def _publish(self, registration_id: str) -> None:
        changes = self._publication.changes(self._session)
        for sessions in batches(changes.publish, BATCH):
            self._publication.sending(sessions)
            self._in_doubt = True
            outcomes = await self._directory.publish(registration_id, sessions)
            self._in_doubt = False
            self._take(sessions, outcomes)
        for withdrawals in batches(changes.withdraw, BATCH):
            self._publication.withdrawing(withdrawals)
            self._drop(withdrawals, await self._directory.withdraw(withdrawals))

    def _session(self, key: str) -> Session | None:
        return session_of(self._attachment.mirror.of_session(key), self._agent_address)

    def _take(self, sessions: Sequence[Session], outcomes: list[ContraflowError | None]) -> None:
        failed: ContraflowError | None = None
        for session, error in zip(sessions, outcomes, strict=False):
            if isinstance(error, InvalidArgument):
                log.error("session_refused", session_key=session.session_key, error=str(error))
            if error is None or isinstance(error, InvalidArgument):
                self._publication.settled(session)
            else:
                failed = error
        if failed is not None:
            raise failed

    def _drop(
        self, withdrawals: Sequence[Withdrawal], outcomes: list[ContraflowError | None]
    ) -> None:
        failed: ContraflowError | None = None
        for withdrawal, error in zip(withdrawals, outcomes, strict=False):
            if error is None or isinstance(error, InvalidArgument):
                self._publication.withdrawn(withdrawal)
            else:
                failed = error
        if failed is not None:
            raise failed

    def _note(self, error: ContraflowError) -> None:
        engine_id = self._attachment.engine.engine_id
        if isinstance(error, RegistrationNotFound):
            self._registration = None
            self._forget()
            log.info("registration_lapsed", engine_id=engine_id)
            return
        if isinstance(error, RegistrationOutdated):
            # This agent has started anew: the one before it had counted on.
            self._sequence = int(error.metadata.get("sequence", "0"))
            log.info("registration_counted", engine_id=engine_id, sequence=self._sequence)
            return
        if isinstance(error, EngineIdReused):
            self._on_id_reused(engine_id)
        log.warning("directory_failed", engine_id=engine_id, reason=error.reason, error=str(error))

    async def _until_due(self) -> None:
        left = max(0.0, self._renew_at - self._clock.now())
        if await happens(self._attachment.changed, self._clock, left):
            await self._clock.sleep(SETTLE_SECONDS)
