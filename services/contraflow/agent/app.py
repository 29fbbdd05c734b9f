"""What the agent does for routers and operators."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from contraflow.agent.attachment import Attachment
from contraflow.agent.codec import Granted
from contraflow.agent.engines import Engines
from contraflow.agent.feed import HandleFeed
from contraflow.agent.mirror import MirroredHandle, ReleaseCause
from contraflow.core.errors import HandleNotFound, StoreUnavailable
from contraflow.core.fleet import Engine
from contraflow.core.handle import ClaimRequest

MAX_PAGE_SIZE = 1000
"""Handles in a page."""


@dataclass(frozen=True, slots=True)
class Page:
    """Handles ordered by id; ``more`` if others follow the last one. ``engine_ids`` of the
    engines whose handles are known."""

    handles: list[MirroredHandle]
    more: bool
    engine_ids: list[str]


class Agent:
    """The use cases of AgentService.

    An engine has the time that the caller will wait; ``acquire_timeout`` and
    ``order_timeout``, in seconds, if the caller sets no deadline.
    """

    def __init__(
        self, engines: Engines, feed: HandleFeed, *, acquire_timeout: float, order_timeout: float
    ) -> None:
        self._engines = engines
        self._feed = feed
        self._acquire_timeout = acquire_timeout
        self._order_timeout = order_timeout

    async def acquire(
        self, engine_id: str, request: ClaimRequest, time_left: float | None
    ) -> Granted:
        """Claim the newest handle of a session; the caller waits ``time_left`` seconds.

        Raises HandleNotFound, HandleClaimed, HandleExpired, LeaseTooShort, TenantMismatch,
        EngineNotAttached, EngineIncarnationStale, EngineIdReused, EngineUnresponsive.
        """
        attachment = self._engines.find_for_pull(engine_id)
        return await attachment.acquire(request, _bounded(time_left, self._acquire_timeout))

    async def return_claim(self, engine_id: str, claim_id: str, time_left: float | None) -> None:
        """Give a claim back unread.

        Raises ClaimNotFound, EngineNotAttached, EngineIncarnationStale, EngineUnresponsive.
        """
        attachment = self._engines.find(engine_id)
        await attachment.return_claim(claim_id, _bounded(time_left, self._order_timeout))

    async def release(self, handle_ids: Sequence[str], time_left: float | None) -> list[str]:
        """Free retained handles; returns the ids of those that will be free. Claimed ones end
        with their claims.

        Raises EngineNotAttached before anything is freed, EngineIncarnationStale likewise,
        EngineUnresponsive.
        """
        timeout = _bounded(time_left, self._order_timeout)
        by_engine: dict[str, list[str]] = {}
        for handle_id in dict.fromkeys(handle_ids):
            engine_id, _, _ = handle_id.partition("/")
            by_engine.setdefault(engine_id, []).append(handle_id)
        orders = [(self._engines.find(engine_id), ids) for engine_id, ids in by_engine.items()]
        released: list[str] = []
        for attachment, ids in orders:
            released += await attachment.release(ids, timeout, ReleaseCause.ORDERED)
        return released

    def list_handles(self, after: str, session_key: str, limit: int) -> Page:
        """Up to ``limit`` handles with ids behind ``after``, of one session or all."""
        known = {one.handle_id: one for one in self._live(session_key) if one.handle_id > after}
        ids = sorted(known)
        engine_ids = [attachment.engine.engine_id for attachment in self._engines.attached()]
        return Page([known[one] for one in ids[:limit]], len(ids) > limit, engine_ids)

    def get_handle(self, handle_id: str) -> MirroredHandle:
        """A live handle. Raises HandleNotFound."""
        for attachment in self._engines.attached():
            if handle := attachment.mirror.get(handle_id):
                return handle
        raise HandleNotFound("the handle has ended or was never there", handle_id=handle_id)

    async def watch_handles(self, session_key: str) -> AsyncGenerator[MirroredHandle | None, None]:
        """The handles of one session or of all, None, then every change; a handle that ends
        once more, with its last state. Raises Overloaded where changes are left unread.
        """
        with self._feed.watching(session_key) as watcher:
            for handle in self._live(session_key):
                yield handle
            yield None
            while True:
                yield await watcher.next()

    async def drain(
        self, engine_id: str, draining: bool, *, release: bool, time_left: float | None
    ) -> Engine:
        """Take an engine out of service for new turns, or put it back; the engine as it is now.
        With ``release`` what it retains is freed, now and as its running turns end.

        Raises EngineNotAttached, EngineIncarnationStale; EngineUnresponsive for the release;
        StoreUnavailable if routers can not be told yet: it is so from now on, but until the
        directory knows it an agent that starts again forgets it.
        """
        attachment = self._engines.find(engine_id)
        attachment.drain(draining, emptying=release)
        timeout = _bounded(time_left, self._order_timeout)
        if attachment.emptying:
            timeout /= 2
            retained = [one.handle_id for one in attachment.mirror.live()]
            await attachment.release(retained, timeout, ReleaseCause.ORDERED)
        if not await attachment.drain_recorded(timeout):
            state = "drains" if draining else "drains no more"
            raise StoreUnavailable(
                f"the engine {state}, but the directory does not know yet: ask once more"
            )
        return attachment.engine

    def attached_engines(self) -> list[Attachment]:
        """Engines with a live link, by engine id."""
        return self._engines.attached()

    def _live(self, session_key: str) -> list[MirroredHandle]:
        mirrors = [attachment.mirror for attachment in self._engines.attached()]
        return [
            handle
            for mirror in mirrors
            for handle in (mirror.of_session(session_key) if session_key else mirror.live())
        ]


def _bounded(time_left: float | None, otherwise: float) -> float:
    # A tenth is left for the way back, so that the caller gets our typed answer.
    return otherwise if time_left is None else time_left * 0.9
