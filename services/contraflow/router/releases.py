"""Has handles freed that nobody will read any more. No turn waits for it."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from contraflow.core.errors import ContraflowError
from contraflow.core.outlived import outlived
from contraflow.core.plan import Plan
from contraflow.core.transfer_params import Params, has_remote_blocks
from contraflow.router.agents import Agents, denial_of
from contraflow.router.metrics import RouterMetrics
from contraflow.router.turn_context import Turn

log = structlog.get_logger()


class Releases:
    """Releases handles at their owners' agents.

    It asks for nothing that a claim would not have: a turn that ended well without reading
    the handle that it went on from takes its place, and only that one's.
    """

    def __init__(self, agents: Agents, metrics: RouterMetrics) -> None:
        self._agents = agents
        self._metrics = metrics

    def outlived(self, turn: Turn, plan: Plan) -> None:
        """A turn has ended well and retained: let the handle go that it went on from, if it
        was not read. Call it off the turn's path."""
        holder, report = plan.holder, turn.report
        if holder is not None and report.lookup_key and not report.spent:
            self._agents.run(self._release(turn, holder.agent_address))

    def untaken(self, params: Params, agent_address: Callable[[str], str]) -> None:
        """No decode engine has got, or will read, what a prefill engine has handed over with
        ``params``: it would hold the blocks for the whole of its lease."""
        engine_id, request_id = params.get("remote_engine_id"), params.get("remote_request_id")
        if has_remote_blocks(params) and (address := agent_address(str(engine_id))):
            self._agents.run(self._untake(address, f"{engine_id}/{request_id}"))

    async def _untake(self, agent_address: str, handle_id: str) -> None:
        try:
            if await self._agents.release(agent_address, [handle_id]):
                self._metrics.released("untaken", 1)
        except ContraflowError as error:
            log.info("blocks_not_released", handle_id=handle_id, why=denial_of(error))

    async def _release(self, turn: Turn, agent_address: str) -> None:
        identity, report = turn.identity, turn.report
        try:
            handle_id = outlived(
                await self._agents.list_handles(agent_address, report.lookup_key),
                identity.tenant,
                report.turn_id,
                identity.continues.turn_id if identity.continues else "",
                identity.earlier_digests,
            )
            if handle_id and await self._agents.release(agent_address, [handle_id]):
                self._metrics.released("outlived", 1)
                log.info("handle_released", turn_id=report.turn_id, handle_id=handle_id)
        except ContraflowError as error:
            # It ends by its lease, or goes for the next one that needs its blocks.
            log.info("handle_not_released", turn_id=report.turn_id, why=denial_of(error))
