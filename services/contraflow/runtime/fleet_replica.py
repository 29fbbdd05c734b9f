"""A process's own copy of what the directory knows, kept by the events of its Watch."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping

from contraflow.core.fleet import Engine, FleetView, Session
from contraflow.runtime.clock import Clock
from contraflow.v1.directory_service_pb2 import WatchResponse
from contraflow.wire.convert import engine_from_proto, session_from_proto

SessionHook = Callable[[Session], None]

QUIET_SECONDS = 20.0
"""A directory that says nothing for longer is not heard: it marks progress far more often."""


class FleetReplica:
    """Engines by id and sessions by key. Used on one event loop, without locks.

    A snapshot replaces everything at once. ``synced`` is set from the first one on; the
    content then stays, growing older, while no directory answers. Sessions are kept until
    their record goes, whatever ``expires_at`` says.

    An engine whose record goes may be alive, its agent gone: it is kept in ``vanished`` for
    ``remember_seconds``, until it is back, or until another incarnation has its place.
    """

    def __init__(self, clock: Clock, remember_seconds: float = 600.0) -> None:
        self.engines: dict[str, Engine] = {}
        self._remember = remember_seconds
        self._vanished: dict[str, tuple[float, Engine]] = {}
        self.sessions: dict[str, Session] = {}
        self.revision = 0
        self.synced = asyncio.Event()
        self._clock = clock
        self._heard_at = -math.inf
        self._resume_from = 0
        self._hooks: list[SessionHook] = []
        self._incoming: _Snapshot | None = None

    @property
    def resume_from(self) -> int:
        """``start_revision`` of the next Watch; zero asks for a snapshot.

        Behind ``revision`` by one after a delta: others of the same revision may be missing.
        """
        return self._resume_from

    def age(self) -> float:
        """Seconds since the directory was last heard; infinite before that."""
        return self._clock.now() - self._heard_at

    def is_current(self) -> bool:
        """False while there may be much that was not heard of: no snapshot was adopted yet, or
        another is under way, or the directory is not heard."""
        complete = self.synced.is_set() and self._incoming is None
        return complete and self.age() <= QUIET_SECONDS

    def view(self, homes: Mapping[str, str]) -> FleetView:
        """The content as a plan takes it. Valid until the next await."""
        return FleetView(
            engines=self.engines, sessions=self.sessions, homes=homes, vanished=self.vanished()
        )

    def vanished(self) -> dict[str, Engine]:
        """Engines that lost their registration lately and have no successor, by id."""
        if not self._vanished:
            return {}
        now = self._clock.now()
        places = {_place(engine) for engine in self.engines.values()}
        self._vanished = {
            engine_id: (since, engine)
            for engine_id, (since, engine) in self._vanished.items()
            if now < since + self._remember
            and engine_id not in self.engines
            and _place(engine) not in places
        }
        return {engine_id: engine for engine_id, (_, engine) in self._vanished.items()}

    def known(self) -> list[Engine]:
        """Registered and vanished engines, ordered by id."""
        everything = {**self.vanished(), **self.engines}
        return [everything[engine_id] for engine_id in sorted(everything)]

    def on_session(self, hook: SessionHook) -> None:
        """Call ``hook`` with each session record that is new or names another handle."""
        self._hooks.append(hook)

    def begin(self) -> None:
        """A Watch starts: with a snapshot, if ``resume_from`` is zero."""
        self._incoming = None if self._resume_from else _Snapshot()

    def forget_revision(self) -> None:
        """The revision is compacted: the next Watch starts with a snapshot."""
        self._resume_from = 0

    def apply(self, response: WatchResponse) -> None:
        """Take one event in."""
        self._heard_at = self._clock.now()
        kind = response.WhichOneof("event")
        if kind == "snapshot_end":
            self._adopt()
        elif self._incoming is not None:
            self._collect(self._incoming, response)
            return
        elif kind == "engine":
            self._put_engine(response)
        elif kind == "session":
            self._put_session(session_from_proto(response.session, self._heard_at))
        elif kind == "removal":
            self._lose(response.removal.engine_id)
            self.sessions.pop(response.removal.session_key, None)
        self.revision = response.revision
        settled = kind in ("snapshot_end", "progress")
        self._resume_from = response.revision if settled else response.revision - 1

    def _collect(self, snapshot: _Snapshot, response: WatchResponse) -> None:
        if response.HasField("engine"):
            if engine := engine_from_proto(response.engine):
                snapshot.engines[engine.engine_id] = engine
        elif response.HasField("session"):
            session = session_from_proto(response.session, self._heard_at)
            snapshot.sessions[session.session_key] = session

    def _adopt(self) -> None:
        if self._incoming is None:
            return
        known, self.sessions = self.sessions, self._incoming.sessions
        for engine_id in set(self.engines) - set(self._incoming.engines):
            self._lose(engine_id)
        self.engines = self._incoming.engines
        self._incoming = None
        self.synced.set()
        for session in list(self.sessions.values()):
            self._announce(known.get(session.session_key), session)

    def _lose(self, engine_id: str) -> None:
        if engine := self.engines.pop(engine_id, None):
            self._vanished[engine_id] = (self._clock.now(), engine)

    def _put_engine(self, response: WatchResponse) -> None:
        engine = engine_from_proto(response.engine)
        if engine is None:
            self.engines.pop(response.engine.engine_id, None)
        else:
            self.engines[engine.engine_id] = engine

    def _put_session(self, session: Session) -> None:
        known = self.sessions.get(session.session_key)
        self.sessions[session.session_key] = session
        self._announce(known, session)

    def _announce(self, known: Session | None, session: Session) -> None:
        if known is None or not known.says_the_same(session):
            for hook in self._hooks:
                hook(session)


def _place(engine: Engine) -> tuple[str, int]:
    return engine.endpoint, engine.dp_rank


class _Snapshot:
    def __init__(self) -> None:
        self.engines: dict[str, Engine] = {}
        self.sessions: dict[str, Session] = {}
