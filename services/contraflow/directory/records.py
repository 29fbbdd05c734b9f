"""Domain values to and from the records in the store."""

from __future__ import annotations

from dataclasses import dataclass

import structlog
from google.protobuf.message import DecodeError

from contraflow.core.fleet import Engine, Session
from contraflow.directory.view import Event, Removal
from contraflow.runtime.clock import Clock
from contraflow.storage.v1.records_pb2 import EngineRecord, SessionRecord
from contraflow.store.port import Change, Item
from contraflow.wire.convert import LONGEST_SECONDS, engine_from_proto, engine_to_proto

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Registered:
    """A registration as recorded. ``lease_id`` 0: there is none. ``engine`` is None if its role
    is of a later release."""

    boot_nonce: str
    lease_id: int
    sequence: int
    engine: Engine | None


class Records:
    """Keys and values under one prefix. Instants are wall-clock time in the store, since its
    readers share no other, and this process's monotonic time elsewhere."""

    def __init__(self, prefix: str, clock: Clock) -> None:
        self.prefix = prefix.rstrip("/") + "/"
        self._engines = self.prefix + "engines/"
        self._sessions = self.prefix + "sessions/"
        self._clock = clock

    def engine_key(self, engine_id: str) -> str:
        """Key of an engine's record."""
        return self._engines + engine_id

    def session_key(self, session_key: str) -> str:
        """Key of a session's record."""
        return self._sessions + session_key

    def encode_engine(self, engine: Engine, lease_id: int, sequence: int) -> bytes:
        """Value of an engine's record."""
        record = EngineRecord(engine=engine_to_proto(engine), lease_id=lease_id, sequence=sequence)
        return record.SerializeToString()

    def encode_session(self, session: Session) -> bytes:
        """Value of a session's record."""
        now, wall_ms = self._clock.now(), self._clock.wall_ms()
        return SessionRecord(
            session_key=session.session_key,
            engine_id=session.engine_id,
            agent_address=session.agent_address,
            handle_id=session.handle_id,
            num_tokens=session.num_tokens,
            message_digest=session.message_digest,
            branches=session.branches,
            expires_unix_ms=_unix_ms(wall_ms, session.expires_at - now),
            retained_unix_ms=_unix_ms(wall_ms, session.retained_at - now),
        ).SerializeToString()

    def registered(self, item: Item | None) -> Registered:
        """Who is registered; nobody, if there is no record or it is unreadable."""
        record = EngineRecord()
        if item is not None:
            try:
                record.ParseFromString(item.value)
            except DecodeError:
                log.warning("record_unreadable", key=item.key)
        engine = engine_from_proto(record.engine)
        return Registered(record.engine.boot_nonce, record.lease_id, record.sequence, engine)

    def handle_id(self, item: Item) -> str:
        """The handle that a session's record names; empty if the record is unreadable."""
        session = self._decode_session(item)
        return session.handle_id if session else ""

    def event(self, change: Change) -> Event | None:
        """What a change in the store means; None if nothing to this release."""
        if change.item is not None:
            return self.decode(change.item)
        if change.key.startswith(self._engines):
            return Removal(engine_id=change.key.removeprefix(self._engines))
        if change.key.startswith(self._sessions):
            return Removal(session_key=change.key.removeprefix(self._sessions))
        return None

    def decode(self, item: Item) -> Engine | Session | None:
        """The value of a record; None if this release can not read it."""
        if item.key.startswith(self._engines):
            return self._decode_engine(item)
        if item.key.startswith(self._sessions):
            return self._decode_session(item)
        return None

    def _decode_engine(self, item: Item) -> Engine | None:
        record = EngineRecord()
        try:
            record.ParseFromString(item.value)
        except DecodeError:
            log.warning("record_unreadable", key=item.key)
            return None
        return engine_from_proto(record.engine)

    def _decode_session(self, item: Item) -> Session | None:
        record = SessionRecord()
        try:
            record.ParseFromString(item.value)
        except DecodeError:
            log.warning("record_unreadable", key=item.key)
            return None
        now, wall_ms = self._clock.now(), self._clock.wall_ms()
        return Session(
            session_key=record.session_key,
            engine_id=record.engine_id,
            agent_address=record.agent_address,
            handle_id=record.handle_id,
            num_tokens=record.num_tokens,
            message_digest=record.message_digest,
            branches=record.branches,
            expires_at=now + (record.expires_unix_ms - wall_ms) / 1000,
            retained_at=now + (record.retained_unix_ms - wall_ms) / 1000,
        )


def _unix_ms(wall_ms: int, seconds: float) -> int:
    """That many seconds from ``wall_ms``, which may be more than a record can hold."""
    return wall_ms + round(min(max(seconds, -LONGEST_SECONDS), LONGEST_SECONDS) * 1000)
