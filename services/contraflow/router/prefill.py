"""The prefill leg: claim a handle, send it with the prompt, settle what became of the claim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import structlog

from contraflow.core.errors import AmbiguousSession, ContraflowError
from contraflow.core.fleet import Engine
from contraflow.core.handle_use import DecideUse
from contraflow.core.plan import Continuation, Decision, Plan, PlanReason, without
from contraflow.core.transfer_params import for_plain_prefill, for_pulling_prefill
from contraflow.router.affinity import Homes, Load, Replies
from contraflow.router.agents import Agents, Claim, Wanted, denial_of
from contraflow.router.costs import Costs
from contraflow.router.legs import LegRequest, Legs, PrefillAnswer, prefill_answer
from contraflow.router.report import Retry
from contraflow.router.turn_context import Turn
from contraflow.runtime.clock import Clock
from contraflow.runtime.grpc_errors import CallFailed
from contraflow.web import UpstreamError, UpstreamProtocolError, UpstreamReset

log = structlog.get_logger()

_DECLINED = "DECLINED"  # a report of this kind says that the handle was kept


class Prefill:
    """Runs prefill legs.

    A claim is given back only with proof that no read was started: no byte of the request has
    left, or the engine reports that it declined, as it must where the use of the handle is not to
    be pulled. In doubt it ends by itself.
    """

    def __init__(
        self,
        agents: Agents,
        legs: Legs,
        homes: Homes,
        replies: Replies,
        load: Load,
        costs: Costs,
        decide_use: DecideUse,
        clock: Clock,
        new_id: Callable[[], str],
    ) -> None:
        self._agents = agents
        self._legs = legs
        self._homes = homes
        self._replies = replies
        self._load = load
        self._costs = costs
        self._decide_use = decide_use
        self._clock = clock
        self._new_id = new_id

    async def run(self, turn: Turn, plan: Plan) -> PrefillAnswer | None:
        """The engine's answer, of any status; the report says how it came about. None if no
        engine of the class takes requests: nobody has anything to hand over. The plan must have a
        prefill engine.

        Raises UpstreamError if the engine does not answer, also not without a handle.
        """
        claim = await self._claim(turn, plan)
        report, started = turn.report, self._clock.now()
        try:
            answer = await self._leg(turn, plan, claim)
        finally:
            report.seconds["prefill"] = self._clock.now() - started
            if claim is not None:
                report.spent = not claim.unread
                if claim.unread:
                    self._agents.give_back(claim)
        if answer is None:
            log.warning("prefill_unreachable", turn_id=report.turn_id, tried=report.prefill)
            report.decision, report.reason = Decision.RECOMPUTE, PlanReason.PREFILL_UNREACHABLE
            report.prefill = ""
        else:
            report.pull = answer.pull
        return answer

    async def _leg(self, turn: Turn, plan: Plan, claim: Claim | None) -> PrefillAnswer | None:
        assert plan.prefill is not None
        failure = await self._try(turn, plan.prefill, claim)
        if isinstance(failure, PrefillAnswer):
            return failure
        other = without(plan, plan.prefill)
        if other is None or other.prefill is None or not other.hands_over:
            return None
        turn.may_retry(Retry.PREFILL_ELSEWHERE, failure)
        report = turn.report
        report.prefill = other.prefill.engine_id
        if claim is not None and not claim.unread:
            claim = None
        elif claim is not None and other.home is None:
            report.decision, report.reason = other.decision, other.reason
            claim = None
        with self._load.leg(other.prefill.engine_id):
            answer = await self._try(turn, other.prefill, claim)
        return answer if isinstance(answer, PrefillAnswer) else None

    async def _try(self, turn: Turn, engine: Engine, claim: Claim | None) -> PrefillAnswer | object:
        """An answer, or why the engine takes no requests: then another one may."""
        try:
            answer = await self._pull(turn, engine, claim) if claim else None
            answer = answer or await self._compute(turn, engine)
        except UpstreamError as error:
            if error.bytes_sent:
                raise
            return error
        return "it is being stopped" if answer.aborted else answer

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
        report.offered_tokens, report.claimed_handle_id = claim.num_tokens, claim.handle_id
        least = self._costs.min_pull_tokens(
            turn.traits.model, plan, claim.num_tokens, explores=report.explores
        )
        claim.use = self._decide_use(claim.num_tokens, least)
        report.decision, report.reason = claim.use.decision, claim.use.reason
        return claim

    async def _pull(self, turn: Turn, engine: Engine, claim: Claim) -> PrefillAnswer | None:
        """The prefill leg with a handle; None if it failed so that it may go without."""
        handle = for_pulling_prefill(claim.params)
        params = turn.instruct(handle, claim.use.decision, claim)
        exchange = self._legs.prefill(engine, turn.leg, params)
        failure: object = None
        try:
            async with exchange as response:
                answer = await prefill_answer(response)
        except (UpstreamReset, UpstreamProtocolError) as error:
            failure = error
        finally:
            claim.unread = not exchange.sent
        if failure is None:
            if answer.pull is not None and answer.pull.outcome.startswith(_DECLINED):
                claim.unread = True
            if answer.status < 500:
                return answer
            failure = f"status {answer.status}"
        turn.may_retry(Retry.PREFILL_WITHOUT_HANDLE, failure)
        return None

    async def _compute(self, turn: Turn, engine: Engine) -> PrefillAnswer:
        params = turn.instruct(for_plain_prefill(), Decision.RECOMPUTE)
        try:
            async with self._legs.prefill(engine, self._request(turn), params) as response:
                return await prefill_answer(response)
        except UpstreamReset as error:
            # The engine closed an idle connection just as we used it. Computing twice does no
            # harm.
            stale = error.reused and not error.response_started
            if not (stale and turn.may_retry(Retry.PREFILL_RESENT, error)):
                raise
        return await self._compute(turn, engine)

    def _request(self, turn: Turn) -> LegRequest:
        # A first try may still be running in the engine, and is ended by its id.
        return replace(turn.leg, leg_id=self._new_id()) if turn.report.retries else turn.leg


def _reason(error: ContraflowError) -> PlanReason:
    if isinstance(error, CallFailed):
        return PlanReason.ACQUIRE_TIMEOUT
    if isinstance(error, AmbiguousSession):
        return PlanReason.AMBIGUOUS_SESSION
    return PlanReason.ACQUIRE_DENIED
