"""The agent's copy of an engine's handle table. Pure; the engine holds the truth."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from contraflow.core.handle import LIVE, State


class ReleaseCause(StrEnum):
    """Why a handle was RELEASED. ROOM: a request needed the blocks."""

    SUPERSEDED = "SUPERSEDED"
    ROOM = "ROOM"
    ORDERED = "ORDERED"
    BUDGET = "BUDGET"


@dataclass(frozen=True, slots=True)
class MirroredHandle:
    """What is known of a handle outside its owner. Fields as in ``contraflow.v1.Handle``.

    ``expires_at`` and ``retained_at`` are instants on the agent's own monotonic clock;
    ``release_cause`` is set once the handle is RELEASED.
    """

    handle_id: str
    engine_id: str
    request_id: str
    tenant: str
    session_key: str
    num_tokens: int
    num_blocks: int
    expires_at: float
    retained_at: float
    state: State = State.RETAINED
    message_digest: str = ""
    turn_id: str = ""
    claim_id: str = ""
    release_cause: ReleaseCause | None = None

    @property
    def claimed(self) -> bool:
        """Whether a claim on it lives."""
        return self.state is State.CLAIMED


class HandleMirror:
    """The live handles of one engine, oldest first. Only ``live``, ``replace`` and ``expire``
    look at all of them."""

    def __init__(self) -> None:
        self._handles: dict[str, MirroredHandle] = {}
        self._by_session: dict[str, dict[str, None]] = {}  # handle ids, oldest first
        self._num_blocks = 0

    def __len__(self) -> int:
        return len(self._handles)

    @property
    def num_blocks(self) -> int:
        """Blocks that they hold together."""
        return self._num_blocks

    def get(self, handle_id: str) -> MirroredHandle | None:
        """A live handle."""
        return self._handles.get(handle_id)

    def live(self) -> list[MirroredHandle]:
        """Live handles, oldest first."""
        return list(self._handles.values())

    def of_session(self, session_key: str) -> list[MirroredHandle]:
        """The live handles of a session key, oldest first."""
        return [self._handles[one] for one in self._by_session.get(session_key, ())]

    def session_keys(self) -> list[str]:
        """Keys of the sessions with live handles."""
        return list(self._by_session)

    def replace(self, handles: Iterable[MirroredHandle]) -> None:
        """Forget what was known: ``handles``, oldest first, are all there are."""
        self._handles, self._by_session, self._num_blocks = {}, {}, 0
        for handle in handles:
            self.apply(handle)

    def apply(self, handle: MirroredHandle) -> MirroredHandle | None:
        """A handle as it is now; an ended one goes. Returns what was known of it before."""
        before = self._handles.get(handle.handle_id)
        stays = handle.state in LIVE
        if before is not None and not (stays and before.session_key == handle.session_key):
            self._drop(before)
        if stays:
            known = self._handles.get(handle.handle_id)
            self._num_blocks += handle.num_blocks - (known.num_blocks if known else 0)
            self._handles[handle.handle_id] = handle  # one that is known keeps its place
            self._by_session.setdefault(handle.session_key, {})[handle.handle_id] = None
        return before

    def expire(self, now: float) -> list[MirroredHandle]:
        """Drop handles whose lease has run out, for an engine may drop the news of it."""
        expired = [handle for handle in self._handles.values() if handle.expires_at <= now]
        for handle in expired:
            self._drop(handle)
        return expired

    def _drop(self, handle: MirroredHandle) -> None:
        del self._handles[handle.handle_id]
        self._num_blocks -= handle.num_blocks
        of_session = self._by_session[handle.session_key]
        del of_session[handle.handle_id]
        if not of_session:
            del self._by_session[handle.session_key]
