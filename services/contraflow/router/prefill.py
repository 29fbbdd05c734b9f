"""The prefill leg: claim a handle, send it with the prompt, settle what became of the claim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import structlog

from contraflow.core.errors import AmbiguousSession, ContraflowError
from contraflow.core.plan import Continuation, Decision, Plan, PlanReason
from contraflow.core.transfer_params import for_plain_prefill, for_pulling_prefill
from contraflow.router.affinity import Homes, Replies
from contraflow.router.agents import Agents, Claim, Wanted, denial_of
from contraflow.router.legs import LegRequest, Legs, PrefillAnswer, prefill_answer
from contraflow.router.turn_context import Turn
from contraflow.runtime.clock import Clock
from contraflow.runtime.grpc_errors import CallFailed
from contraflow.web import UpstreamReset

log = structlog.get_logger()

_DECLINED = "DECLINED"  # a report of this kind says that the handle was kept


class Prefill:
    """Runs prefill legs.

    A claim is given back only with proof that no read was started: no byte of the request has
    left, or the engine reports that it declined. In doubt it ends by itself.
    """

    def __init__(
        self,
        agents: Agents,
        legs: Legs,
        homes: Homes,
        replies: Replies,
        clock: Clock,
        new_id: Callable[[], str],
    ) -> None:
        self._agents = agents
        self._legs = legs
        self._homes = homes
        self._replies = replies
        self._clock = clock
        self._new_id = new_id

    async def run(self, turn: Turn, plan: Plan) -> PrefillAnswer:
        """The engine's answer, of any status; the report says how it came about.

        Raises UpstreamError if the engine does not answer, also not without a handle.
        """
        claim = await self._claim(turn, plan)
        started = self._clock.now()
        try:
            answer = await self._pull(turn, plan, claim) if claim else None
            answer = answer or await self._compute(turn, plan)
        finally:
            turn.report.seconds["prefill"] = self._clock.now() - started
        turn.report.pull = answer.pull
        return answer

    async def _claim(self, turn: Turn, plan: Plan) -> Claim | None:
        """The home's grant, or None: then the turn is a recompute, with the denial reported."""
        if plan.home is None:
            return None
        identity = turn.identity
        continues = identity.continues or Continuation(identity.session_key)
        wanted = Wanted(
            claim_id=self._new_id(),
            tenant=identity.tenant,
            session_key=continues.key,
            engine_id=plan.home.engine_id,
            agent_address=plan.home.agent_address,
            hint_handle_id=plan.handle_id,
            message_digests=identity.earlier_digests,
            produced_by_turn_id=continues.turn_id,
        )
        # The next turn with the same reply shall ask for another handle.
        self._replies.spend(continues.key, identity.reply_digest)
        report, started = turn.report, self._clock.now()
        try:
            claim = await self._agents.acquire(wanted)
        except ContraflowError as error:
            report.decision = Decision.RECOMPUTE
            report.reason = _reason(error)
            report.denial = denial_of(error)
            return None
        finally:
            # Claimed or denied, our own belief in a handle at home is used up.
            self._homes.forget(continues.key)
            report.seconds["acquire"] = self._clock.now() - started
        report.offered_tokens = claim.num_tokens
        return claim

    async def _pull(self, turn: Turn, plan: Plan, claim: Claim) -> PrefillAnswer | None:
        """The prefill leg with a handle; None if it failed so that it may go without."""
        handle = for_pulling_prefill(claim.params)
        params = turn.instruct(handle, Decision.PULL, claim)
        exchange = self._legs.prefill(plan.prefill, turn.leg, params)
        try:
            async with exchange as response:
                answer = await prefill_answer(response)
        except BaseException as error:
            if not exchange.sent:
                self._give_back(claim)
            if not isinstance(error, UpstreamReset):
                raise
            self._retrying(turn, str(error))
            return None
        if answer.pull is not None and answer.pull.outcome.startswith(_DECLINED):
            self._give_back(claim)
        if answer.status >= 500:
            self._retrying(turn, f"status {answer.status}")
            return None
        return answer

    async def _compute(self, turn: Turn, plan: Plan) -> PrefillAnswer:
        params = turn.instruct(for_plain_prefill(), Decision.RECOMPUTE)
        try:
            async with self._legs.prefill(plan.prefill, self._leg(turn), params) as response:
                return await prefill_answer(response)
        except UpstreamReset as error:
            # The engine closed an idle connection just as we used it. Computing twice does no
            # harm; a decode leg is never sent again, for it may have read its blocks.
            if not error.reused or error.response_started or turn.report.retried:
                raise
            self._retrying(turn, str(error))
        return await self._compute(turn, plan)

    def _retrying(self, turn: Turn, why: str) -> None:
        turn.report.retried = True
        log.warning("prefill_retried", turn_id=turn.report.turn_id, why=why)

    def _give_back(self, claim: Claim) -> None:
        self._agents.give_back(claim.claim_id, claim.engine_id, claim.agent_address)

    def _leg(self, turn: Turn) -> LegRequest:
        # A first try may still be running in the engine, and is ended by its id.
        return replace(turn.leg, leg_id=self._new_id()) if turn.report.retried else turn.leg


def _reason(error: ContraflowError) -> PlanReason:
    if isinstance(error, CallFailed):
        return PlanReason.ACQUIRE_TIMEOUT
    if isinstance(error, AmbiguousSession):
        return PlanReason.AMBIGUOUS_SESSION
    return PlanReason.ACQUIRE_DENIED
