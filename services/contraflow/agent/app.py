"""What the agent does for routers and operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from contraflow.agent.attachment import Attachment
from contraflow.agent.codec import Granted
from contraflow.agent.engines import Engines
from contraflow.agent.mirror import MirroredHandle
from contraflow.core.handle import ClaimRequest

MAX_PAGE_SIZE = 1000
"""Handles in a page."""


@dataclass(frozen=True, slots=True)
class Page:
    """Handles ordered by id; ``more`` if others follow the last one."""

    handles: list[MirroredHandle]
    more: bool


class Agent:
    """The use cases of AgentService.

    An engine has the time that the caller will wait; ``acquire_timeout`` and
    ``order_timeout``, in seconds, if the caller sets no deadline.
    """

    def __init__(self, engines: Engines, *, acquire_timeout: float, order_timeout: float) -> None:
        self._engines = engines
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
        """Free retained handles; returns the ids of those that will be free.

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
            released += await attachment.release(ids, timeout)
        return released

    def list_handles(self, after: str, session_key: str, limit: int) -> Page:
        """Up to ``limit`` handles with ids behind ``after``, of one session or all."""
        known = {
            handle.handle_id: handle
            for attachment in self._engines.attached()
            for handle in attachment.mirror.live()
            if handle.handle_id > after and session_key in ("", handle.session_key)
        }
        ids = sorted(known)
        return Page([known[one] for one in ids[:limit]], more=len(ids) > limit)

    def attached_engines(self) -> list[Attachment]:
        """Engines with a live link, by engine id."""
        return self._engines.attached()


def _bounded(time_left: float | None, otherwise: float) -> float:
    # A tenth is left for the way back, so that the caller gets our typed answer.
    return otherwise if time_left is None else time_left * 0.9
