"""Has handles freed that nobody will read any more. No turn waits for it."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from contraflow.core.errors import ContraflowError
from contraflow.core.outlived import Before, outlived
from contraflow.core.plan import Plan, PlanReason
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
        if holder is None or not report.lookup_key or report.spent:
            return
        if (before := _before(turn)) is not None:
            self._agents.run(self._release(turn, before, holder.agent_address))

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

    async def _release(self, turn: Turn, before: Before, agent_address: str) -> None:
        report = turn.report
        try:
            # An agent whose engine is not attached, as after its own start, tells of no handle.
            listed = await self._agents.list_handles(agent_address, report.lookup_key)
            tenant = turn.identity.tenant
            handle_id = outlived(listed.handles, tenant, report.turn_id, before)
            if handle_id and await self._agents.release(agent_address, [handle_id]):
                self._metrics.released("outlived", 1)
                log.info("handle_released", turn_id=report.turn_id, handle_id=handle_id)
        except ContraflowError as error:
            # It ends by its lease, or goes for the next one that needs its blocks.
            log.info("handle_not_released", turn_id=report.turn_id, why=denial_of(error))


def _before(turn: Turn) -> Before | None:
    """What the turn went on from; None if nothing tells whose handle it would be.

    A session's handles are its own. One under the key of messages may be that of any
    conversation that began with them: only the reply tells, if it passed here, or the proof.
    """
    if turn.report.reason == PlanReason.AMBIGUOUS_SESSION:
        return None
    continues = turn.identity.continues
    if continues is None:
        return Before(message_digests=turn.identity.earlier_digests)
    if continues.turn_id:
        return Before(turn_id=continues.turn_id)
    if handle_id := turn.report.proven_handle_id:
        return Before(handle_id=handle_id)
    return None
