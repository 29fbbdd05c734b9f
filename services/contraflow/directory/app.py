"""Use cases of the directory, on domain values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from contraflow.core.errors import (
    ContraflowError,
    EngineIdReused,
    InvalidArgument,
    NotFound,
    RegistrationNotFound,
    RegistrationOutdated,
    StoreUnavailable,
)
from contraflow.core.fleet import Engine, Session
from contraflow.directory.config import LimitsConfig, LivenessConfig
from contraflow.directory.pages import page
from contraflow.directory.records import Records, Registered
from contraflow.directory.validation import require_batch, require_engine, session_error
from contraflow.directory.view import Event, View
from contraflow.runtime.clock import Clock, happens
from contraflow.store.port import ABSENT, LeaseNotFound, Store

_REGISTER_ATTEMPTS = 3
_NEW_SECONDS = 10.0  # a record that comes later is told anew, or comes late


class Mark(Enum):
    """What a watch says besides events."""

    SNAPSHOT_END = 1
    PROGRESS = 2


@dataclass(frozen=True, slots=True)
class WatchStep:
    """One message of a watch."""

    revision: int
    event: Event | Mark


class Directory:
    """Writes go to the store; reads come from the view, which follows it. A registration id
    is the store's lease, so that any replica understands it."""

    def __init__(
        self,
        store: Store,
        view: View,
        records: Records,
        clock: Clock,
        *,
        liveness: LivenessConfig,
        limits: LimitsConfig,
        progress_seconds: float,
    ) -> None:
        self._store = store
        self._view = view
        self._records = records
        self._clock = clock
        self._liveness = liveness
        self._limits = limits
        self._progress_seconds = progress_seconds
        self.watchers = 0

    async def register(
        self, engine: Engine, ttl: float | None, registration_id: str = "", sequence: int = 0
    ) -> tuple[str, float]:
        """Registration id and TTL granted. Raises EngineIdReused, InvalidArgument,
        RegistrationOutdated.

        It goes on under ``registration_id``, if that is the incarnation's and alive. Else the
        sessions of an earlier registration of the incarnation go with it.
        """
        require_engine(engine)
        key = self._records.engine_key(engine.engine_id)
        for _ in range(_REGISTER_ATTEMPTS):
            [known] = await self._store.get([key])
            former = self._records.registered(known)
            if former.boot_nonce and former.boot_nonce != engine.boot_nonce:
                raise EngineIdReused(
                    "the engine id is alive with another boot nonce", engine_id=engine.engine_id
                )
            _require_news(former, engine, sequence)
            old_lease = former.lease_id
            expected = known.revision if known else ABSENT
            if old_lease and old_lease == _lease_id(registration_id):
                with suppress(LeaseNotFound):
                    granted = await self._store.keepalive(old_lease)
                    value = self._records.encode_engine(engine, old_lease, sequence)
                    if await self._store.put_if(key, value, expected, old_lease) is None:
                        continue
                    return registration_id, granted
            lease = await self._store.grant(self._clamp(ttl))
            value = self._records.encode_engine(engine, lease.lease_id, sequence)
            if await self._store.put_if(key, value, expected, lease.lease_id) is not None:
                if old_lease:
                    await self._store.revoke(old_lease)
                return f"{lease.lease_id:x}", lease.ttl
            await self._store.revoke(lease.lease_id)
        raise StoreUnavailable("another registration of this engine is under way")

    async def renew(self, registration_id: str) -> float:
        """TTL granted, from now on. Raises RegistrationNotFound."""
        lease_id = _lease_id(registration_id)
        if lease_id is None:
            raise _no_registration()
        try:
            return await self._store.keepalive(lease_id)
        except LeaseNotFound:
            raise _no_registration() from None

    async def deregister(self, registration_id: str) -> None:
        """End a registration and all that is bound to it. Raises InvalidArgument."""
        lease_id = _lease_id(registration_id)
        if lease_id is None:
            raise InvalidArgument("not a registration id", field="registration_id")
        await self._store.revoke(lease_id)

    async def publish(
        self, registration_id: str, sessions: Sequence[Session]
    ) -> tuple[list[ContraflowError | None], int]:
        """An outcome per session, and the revision written; it is well if the record of a
        conversation that has moved on stands instead. Raises InvalidArgument."""
        require_batch(len(sessions), self._limits.max_batch_items, "sessions")
        outcomes: list[ContraflowError | None] = [session_error(session) for session in sessions]
        puts = {
            self._records.session_key(session.session_key): self._records.encode_session(session)
            for session, error in zip(sessions, outcomes, strict=True)
            if error is None and not self._outdated(session)
        }
        lease_id = _lease_id(registration_id)
        try:
            if lease_id is None:
                raise LeaseNotFound
            revision = await self._store.put(puts, lease_id) if puts else self._view.revision
        except LeaseNotFound:
            return [error or _no_registration() for error in outcomes], self._view.revision
        return outcomes, revision

    def _outdated(self, session: Session) -> bool:
        # By the age that its owner tells: what two hosts call now does not compare. And from
        # the view: it costs nothing, and what comes of a wrong guess is a hint that is worse.
        held = self._view.sessions.get(session.session_key)
        return (
            self._clock.now() - session.retained_at > _NEW_SECONDS
            and held is not None
            and held.engine_id != session.engine_id
            and held.engine_id in self._view.engines
        )

    async def withdraw(self, ended: Sequence[tuple[str, str]]) -> list[ContraflowError | None]:
        """Remove records by (session key, handle id), where they still name the handle."""
        require_batch(len(ended), self._limits.max_batch_items, "withdrawals")
        handles: dict[str, set[str]] = {}  # one key may be named with several handles
        for key, handle in ended:
            handles.setdefault(self._records.session_key(key), set()).add(handle)
        # From the store, not the view: the record may have been published a moment ago,
        # through another replica.
        items = await self._store.get(list(handles)) if handles else []
        await asyncio.gather(*(
            self._store.delete_if(item.key, item.revision)
            for item in items
            if item is not None and self._records.handle_id(item) in handles[item.key]
        ))  # fmt: skip
        return [None] * len(ended)

    def get_engine(self, engine_id: str) -> Engine:
        """Raises NotFound."""
        self._view.require_filled()
        engine = self._view.engines.get(engine_id)
        if engine is None:
            raise NotFound("no such engine", engine_id=engine_id)
        return engine

    def list_engines(self, size: int, token: str) -> tuple[list[Engine], str]:
        """A page and the token of the next. Raises InvalidArgument."""
        self._view.require_filled()
        return page(self._view.engines, size, token, self._limits.max_page_size)

    def get_session(self, session_key: str) -> Session:
        """Raises NotFound."""
        self._view.require_filled()
        session = self._view.sessions.get(session_key)
        if session is None:
            raise NotFound("no such session")
        return session

    def list_sessions(self, size: int, token: str) -> tuple[list[Session], str]:
        """A page and the token of the next. Raises InvalidArgument."""
        self._view.require_filled()
        return page(self._view.sessions, size, token, self._limits.max_page_size)

    async def watch(self, start_revision: int) -> AsyncGenerator[WatchStep, None]:
        """A snapshot and its end (unless resuming), then events, and progress when quiet.

        Nothing is buffered for a slow reader: one that falls behind the view's history gets
        RevisionCompacted.
        """
        self.watchers += 1
        try:
            async for step in self._watch(start_revision):
                yield step
        finally:
            self.watchers -= 1

    async def _watch(self, start_revision: int) -> AsyncGenerator[WatchStep, None]:
        view = self._view
        view.require_filled()
        cursor, epoch = start_revision or view.revision, view.epoch
        if start_revision == 0:
            content: list[Event] = [*view.engines.values(), *view.sessions.values()]
            for record in content:
                yield WatchStep(cursor, record)
            yield WatchStep(cursor, Mark.SNAPSHOT_END)
        while True:
            news = view.news
            for step in view.since(cursor, epoch):
                for event in step.events:
                    yield WatchStep(step.revision, event)
                cursor = step.revision
            # While the store is lost there may be changes that nobody has told us of.
            told = view.news is not news or await happens(news, self._clock, self._progress_seconds)
            if not told and view.in_sync:
                yield WatchStep(cursor, Mark.PROGRESS)

    def _clamp(self, ttl: float | None) -> float:
        liveness = self._liveness
        wished = liveness.default_ttl_seconds if ttl is None else ttl
        return min(max(wished, liveness.min_ttl_seconds), liveness.max_ttl_seconds)


def _require_news(former: Registered, engine: Engine, sequence: int) -> None:
    """Raises RegistrationOutdated, but not for the same once more: its answer may be lost."""
    if sequence == 0 or sequence > former.sequence:
        return
    if sequence == former.sequence and former.engine == engine:
        return
    raise RegistrationOutdated(
        "more has been told of the engine since: register above the recorded sequence",
        sequence=str(former.sequence),
    )


def _lease_id(registration_id: str) -> int | None:
    try:
        lease_id = int(registration_id, 16)
    except ValueError:
        return None
    return lease_id if 0 < lease_id < 2**63 else None


def _no_registration() -> RegistrationNotFound:
    return RegistrationNotFound("the registration has lapsed: register again, publish everything")
