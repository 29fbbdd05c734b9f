"""What to tell the directory: the difference between the handles there are and what it holds.

Pure. Nothing is queued: however long the directory is away, the difference is computed anew
from the mirror when it is back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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


def sessions_of(
    live: Mapping[str, Sequence[MirroredHandle]], agent_address: str
) -> dict[str, Session]:
    """The records that the directory should hold, from the live handles of each session,
    oldest first. Malformed session keys are left out."""
    return {
        key: Session(
            session_key=key,
            engine_id=handles[-1].engine_id,
            agent_address=agent_address,
            handle_id=handles[-1].handle_id,
            num_tokens=handles[-1].num_tokens,
            expires_at=handles[-1].expires_at,
            retained_at=handles[-1].retained_at,
            message_digest=handles[-1].message_digest,
            branches=len(handles),
        )
        for key, handles in live.items()
        if is_session_key(key)
    }


class Publication:
    """What the directory is known to hold of one registration, and what it may hold."""

    def __init__(self) -> None:
        self._held: dict[str, Session] = {}
        self._possible: dict[str, set[str]] = {}  # handle ids of calls without an answer

    def changes(self, wanted: Mapping[str, Session]) -> Changes:
        """What is to be sent so that the directory holds ``wanted``."""
        publish = [
            session for key, session in wanted.items() if not _same(self._held.get(key), session)
        ]
        gone = (self._held.keys() | self._possible.keys()) - wanted.keys()
        withdraw = [
            Withdrawal(key, handle_id) for key in sorted(gone) for handle_id in self._named(key)
        ]
        return Changes(publish, withdraw)

    def sending(self, sessions: Iterable[Session]) -> None:
        """Records are on their way. Until the answer is in, either version may be there."""
        for session in sessions:
            names = set(self._named(session.session_key))
            self._held.pop(session.session_key, None)
            self._possible[session.session_key] = names | {session.handle_id}

    def withdrawing(self, withdrawals: Iterable[Withdrawal]) -> None:
        """Removals are on their way. Until the answer is in, the record may be there or not."""
        for withdrawal in withdrawals:
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
