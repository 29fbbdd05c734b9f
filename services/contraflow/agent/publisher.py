"""What to tell the directory: the difference between the handles there are and what it holds.

Pure. What is remembered of a change is its session only: however long the directory is away,
what to say of it is found anew when it is back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from contraflow.agent.mirror import MirroredHandle
from contraflow.core.fleet import Session
from contraflow.core.session import is_session_key

EXPIRY_TOLERANCE = 1.0
"""Seconds by which two readings of one lease may differ without being a change."""


class Withdrawal(NamedTuple):
    """A record to remove, if it still names this handle."""

    session_key: str
    handle_id: str


@dataclass(frozen=True, slots=True)
class Changes:
    """What the directory lacks. No session is in both lists."""

    publish: list[Session] = field(default_factory=list)
    withdraw: list[Withdrawal] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.publish or self.withdraw)


def session_of(handles: Sequence[MirroredHandle], agent_address: str) -> Session | None:
    """The record that the directory should hold, from a session's live handles, oldest first;
    None if there are none, or the session key is malformed."""
    if not handles or not is_session_key(handles[-1].session_key):
        return None
    newest = handles[-1]
    return Session(
        session_key=newest.session_key,
        engine_id=newest.engine_id,
        agent_address=agent_address,
        handle_id=newest.handle_id,
        num_tokens=newest.num_tokens,
        expires_at=newest.expires_at,
        retained_at=newest.retained_at,
        message_digest=newest.message_digest,
        branches=len(handles),
    )


class Publication:
    """What the directory is known to hold of one registration, and what it may hold."""

    def __init__(self) -> None:
        self._held: dict[str, Session] = {}
        self._possible: dict[str, set[str]] = {}  # handle ids of calls without an answer
        self._noted: dict[str, None] = {}  # keys, those that wait longest first

    def note(self, keys: Iterable[str]) -> None:
        """There may be news of these sessions."""
        self._noted.update(dict.fromkeys(keys))

    def changes(self, wanted: Callable[[str], Session | None]) -> Changes:
        """What is to be sent so that the directory holds what is ``wanted`` of the sessions
        that were noted, or whose calls have had no answer."""
        changes = Changes()
        for key in self._noted | dict.fromkeys(self._possible):
            session, named = wanted(key), self._named(key)
            if session is None and named:
                changes.withdraw.extend(Withdrawal(key, handle_id) for handle_id in named)
            elif session is not None and not _same(self._held.get(key), session):
                changes.publish.append(session)
            else:
                self._noted.pop(key, None)
        return changes

    def sending(self, sessions: Iterable[Session]) -> None:
        """Records are on their way. Until the answer is in, either version may be there."""
        for session in sessions:
            names = set(self._named(session.session_key))
            self._noted.pop(session.session_key, None)
            self._held.pop(session.session_key, None)
            self._possible[session.session_key] = names | {session.handle_id}

    def withdrawing(self, withdrawals: Iterable[Withdrawal]) -> None:
        """Removals are on their way. Until the answer is in, the record may be there or not."""
        for withdrawal in withdrawals:
            self._noted.pop(withdrawal.session_key, None)
            if held := self._held.pop(withdrawal.session_key, None):
                self._possible.setdefault(held.session_key, set()).add(held.handle_id)

    def settled(self, session: Session) -> None:
        """The directory has taken the record, or refused it for good."""
        self._held[session.session_key] = session
        self._possible.pop(session.session_key, None)

    def withdrawn(self, withdrawal: Withdrawal) -> None:
        """The directory no longer holds a record that names this handle."""
        key = withdrawal.session_key
        possible = self._possible.get(key)
        if possible is not None:
            possible.discard(withdrawal.handle_id)
            if not possible:
                del self._possible[key]

    def forget(self) -> None:
        """The registration is gone and its records with it."""
        self._held.clear()
        self._possible.clear()

    def _named(self, key: str) -> list[str]:
        names = set(self._possible.get(key, ()))
        if held := self._held.get(key):
            names.add(held.handle_id)
        return sorted(names)


def _same(held: Session | None, wanted: Session) -> bool:
    return held is not None and (
        held.says_the_same(wanted) and abs(held.expires_at - wanted.expires_at) <= EXPIRY_TOLERANCE
    )
