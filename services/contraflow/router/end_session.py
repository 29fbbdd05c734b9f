"""EndSession: a conversation is over, so that what it retains may go."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import structlog

from contraflow.core.errors import ContraflowError, InvalidArgument
from contraflow.core.fleet import Role
from contraflow.core.session import session_key
from contraflow.router.affinity import Homes
from contraflow.router.agents import Agents, denial_of
from contraflow.router.metrics import RouterMetrics
from contraflow.runtime.fleet_replica import FleetReplica
from contraflow.v1 import router_service_pb2 as pb

log = structlog.get_logger()

_AT_ONCE = 16
"""Agents asked at the same time."""


class SessionEnds:
    """Ends sessions at every agent with decode engines: where branches have gone, and what was
    left behind by a move, no record tells."""

    def __init__(
        self,
        secret: bytes,
        agents: Agents,
        homes: Homes,
        replica: FleetReplica,
        metrics: RouterMetrics,
    ) -> None:
        self._secret = secret
        self._agents = agents
        self._homes = homes
        self._replica = replica
        self._metrics = metrics

    async def end(self, tenant: str, session_id: str) -> pb.EndSessionResponse:
        """Release what the session retains. Raises InvalidArgument."""
        if not session_id:
            raise InvalidArgument("a session id is needed", field="session_id")
        key = session_key(self._secret, tenant, session_id)
        self._homes.forget(key)
        current = self._replica.is_current()
        engine_ids = defaultdict[str, set[str]](set)  # by the addresses of their agents
        for engine in self._replica.known():
            if engine.role is Role.DECODE:
                engine_ids[engine.agent_address].add(engine.engine_id)
        gate = asyncio.Semaphore(_AT_ONCE)

        async def at(address: str) -> tuple[list[str], bool]:
            async with gate:
                return await self._release(address, engine_ids[address], key, tenant)

        answers = await asyncio.gather(*map(at, sorted(engine_ids)))
        released = [handle_id for ids, _ in answers for handle_id in ids]
        complete = current and all(asked for _, asked in answers)
        self._metrics.released("ended", len(released))
        log.info(
            "session_ended",
            tenant=tenant,
            session_key=key,
            handles=len(released),
            complete=complete,
        )
        return pb.EndSessionResponse(released_handle_ids=sorted(released), complete=complete)

    async def _release(
        self, address: str, engine_ids: set[str], key: str, tenant: str
    ) -> tuple[list[str], bool]:
        """The handles that go, and whether all of these engines were asked for theirs."""
        try:
            listed = await self._agents.list_handles(address, key)
            ids = [handle.handle_id for handle in listed.handles if handle.tenant == tenant]
            released = await self._agents.release(address, ids) if ids else ()
        except ContraflowError as error:
            log.warning("session_not_ended", session_key=key, agent=address, why=denial_of(error))
            return [], False
        # An agent that has just started knows nothing of engines that have yet to attach again.
        return list(released), engine_ids.issubset(listed.engine_ids)
