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


class HandleMirror:
    """The live handles of one engine, oldest first."""

    def __init__(self) -> None:
        self._handles: dict[str, MirroredHandle] = {}

    def __len__(self) -> int:
        return len(self._handles)

    def get(self, handle_id: str) -> MirroredHandle | None:
        """A live handle."""
        return self._handles.get(handle_id)

    def live(self) -> list[MirroredHandle]:
        """Live handles, oldest first."""
        return list(self._handles.values())

    def replace(self, handles: Iterable[MirroredHandle]) -> None:
        """Forget what was known: ``handles``, oldest first, are all there are."""
        self._handles = {handle.handle_id: handle for handle in handles if handle.state in LIVE}

    def apply(self, handle: MirroredHandle) -> MirroredHandle | None:
        """A handle as it is now; an ended one goes. Returns what was known of it before."""
        before = self._handles.get(handle.handle_id)
        if handle.state in LIVE:
            self._handles[handle.handle_id] = handle  # one that is known keeps its place
        else:
            self._handles.pop(handle.handle_id, None)
        return before

    def expire(self, now: float) -> list[MirroredHandle]:
        """Drop handles whose lease has run out, for an engine may drop the news of it."""
        expired = [handle for handle in self._handles.values() if handle.expires_at <= now]
        for handle in expired:
            del self._handles[handle.handle_id]
        return expired

    def by_session(self) -> dict[str, list[MirroredHandle]]:
        """The live handles of each session key, oldest first."""
        found: dict[str, list[MirroredHandle]] = {}
        for handle in self._handles.values():
            found.setdefault(handle.session_key, []).append(handle)
        return found
