"""What this replica knows, and a bounded history of how it came to know it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from contraflow.core.errors import RevisionCompacted, StoreUnavailable
from contraflow.core.fleet import Engine, Session


@dataclass(frozen=True, slots=True)
class Removal:
    """A record that has gone; one of both is set."""

    engine_id: str = ""
    session_key: str = ""


Event = Engine | Session | Removal


@dataclass(frozen=True, slots=True)
class Step:
    """All events of one revision, or of one resynchronization with the store."""

    revision: int
    events: tuple[Event, ...]


class View:
    """Engines by id and sessions by key, at ``revision``. Used on one event loop.

    ``epoch`` grows when the store's revisions start over: those of before mean nothing
    then. ``in_sync`` is false while the store can not be followed.
    """

    def __init__(self, max_history: int) -> None:
        self.engines: dict[str, Engine] = {}
        self.sessions: dict[str, Session] = {}
        self.revision = 0
        self.epoch = 0
        self.in_sync = False
        self.filled = asyncio.Event()
        self.closed = False
        self.news = asyncio.Event()
        self._max_history = max_history
        self._history: deque[Step] = deque()
        self._kept = 0
        self._floor = 0

    def require_filled(self) -> None:
        """Raises StoreUnavailable before the first content, and once closed."""
        if self.closed:
            raise StoreUnavailable("this directory is stopping")
        if not self.filled.is_set():
            raise StoreUnavailable("this directory has not reached its store yet")

    def resync(self, records: Iterable[Engine | Session], revision: int) -> None:
        """Adopt the whole content of the store; the difference becomes one step."""
        fresh = _by_key(records)
        self.in_sync = True
        if not self.filled.is_set() or revision < self.revision:
            self._start_over(fresh, revision)
        elif events := self._difference(fresh):
            self._keep(Step(revision, events))
            self.revision = revision
        self._adopt(fresh)
        self.filled.set()
        self._tell()

    def apply(self, revision: int, events: Sequence[Event]) -> None:
        """Take in what happened at one revision."""
        self.revision = revision
        if not events:
            return
        for event in events:
            self._take(event)
        self._keep(Step(revision, tuple(events)))
        self._tell()

    def lost(self) -> None:
        """The store can not be followed now; the content stays."""
        self.in_sync = False

    def close(self) -> None:
        """Wake watchers for the last time."""
        self.closed = True
        self._tell()

    def since(self, revision: int, epoch: int) -> list[Step]:
        """The steps after ``revision``. Raises RevisionCompacted if they are not all known."""
        self.require_filled()
        if revision > self.revision and not self.in_sync:
            raise StoreUnavailable("this directory has lost its store and may lag behind")
        if epoch != self.epoch or not self._floor <= revision <= self.revision:
            raise RevisionCompacted(f"the history does not reach back to revision {revision}")
        steps: list[Step] = []
        for step in reversed(self._history):
            if step.revision <= revision:
                break
            steps.append(step)
        return steps[::-1]

    def _start_over(self, fresh: _Content, revision: int) -> None:
        self._history.clear()
        self._kept = 0
        self._floor = self.revision = revision
        self.epoch += 1

    def _adopt(self, fresh: _Content) -> None:
        self.engines, self.sessions = fresh

    def _difference(self, fresh: _Content) -> tuple[Event, ...]:
        engines, sessions = fresh
        gone = [Removal(session_key=key) for key in self.sessions.keys() - sessions.keys()]
        gone += [Removal(engine_id=key) for key in self.engines.keys() - engines.keys()]
        changed: list[Event] = [
            engine for key, engine in engines.items() if self.engines.get(key) != engine
        ]
        changed += [
            session
            for key, session in sessions.items()
            if not _same_record(self.sessions.get(key), session)
        ]
        return (*gone, *changed)

    def _take(self, event: Event) -> None:
        if isinstance(event, Engine):
            self.engines[event.engine_id] = event
        elif isinstance(event, Session):
            self.sessions[event.session_key] = event
        else:
            self.engines.pop(event.engine_id, None)
            self.sessions.pop(event.session_key, None)

    def _keep(self, step: Step) -> None:
        self._history.append(step)
        self._kept += len(step.events)
        while self._kept > self._max_history and len(self._history) > 1:
            oldest = self._history.popleft()
            self._kept -= len(oldest.events)
            self._floor = oldest.revision

    def _tell(self) -> None:
        self.news.set()
        self.news = asyncio.Event()


_Content = tuple[dict[str, Engine], dict[str, Session]]


def _by_key(records: Iterable[Engine | Session]) -> _Content:
    engines: dict[str, Engine] = {}
    sessions: dict[str, Session] = {}
    for record in records:
        if isinstance(record, Engine):
            engines[record.engine_id] = record
        else:
            sessions[record.session_key] = record
    return engines, sessions


_SAME_EXPIRY_SECONDS = 0.5  # between two conversions from wall-clock time


def _same_record(known: Session | None, fresh: Session) -> bool:
    if known is None or abs(known.expires_at - fresh.expires_at) > _SAME_EXPIRY_SECONDS:
        return False
    return known.says_the_same(fresh)
