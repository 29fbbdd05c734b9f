"""A turn: identify, plan, acquire, prefill, decode. What is decided is decided in the core."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from contraflow.core.errors import ContraflowError
from contraflow.core.instructions import Instructions
from contraflow.core.plan import Decision, Plan, PlanReason, TurnRequest
from contraflow.core.transfer_params import (
    OURS,
    Params,
    for_decode,
    for_plain_decode,
    for_plain_prefill,
    for_pulling_prefill,
    has_remote_blocks,
)
from contraflow.router.affinity import Homes, Load
from contraflow.router.agents import Agents, Claim, Wanted, denial_of
from contraflow.router.http import (
    ApiError,
    ClientDisconnected,
    Request,
    Responder,
    SseEventTooLarge,
    UpstreamError,
    UpstreamReset,
    UpstreamTimeout,
    parse_body,
)
from contraflow.router.legs import LegRequest, Legs, PrefillAnswer
from contraflow.router.metrics import RouterMetrics
from contraflow.router.planning import Planner
from contraflow.router.relay import client_headers, relay
from contraflow.router.report import TurnReport
from contraflow.router.sessions import Identity, engine_overrides, identify
from contraflow.router.tenancy import Tenancy
from contraflow.router.turn_body import Traits, traits_of
from contraflow.runtime.clock import Clock
from contraflow.runtime.grpc_errors import CallFailed

log = structlog.get_logger()

_DECLINED = "DECLINED"  # a report of this kind says that the handle was kept


@dataclass(frozen=True, slots=True)
class Turn:
    """One request on its way."""

    identity: Identity
    traits: Traits
    leg: LegRequest
    report: TurnReport
    started: float


class Turns:
    """Serves turns. One for each process."""

    def __init__(
        self,
        *,
        secret: bytes,
        tenancy: Tenancy,
        planner: Planner,
        agents: Agents,
        legs: Legs,
        homes: Homes,
        load: Load,
        metrics: RouterMetrics,
        clock: Clock,
        new_id: Callable[[], str],
    ) -> None:
        self._secret = secret
        self._tenancy = tenancy
        self._planner = planner
        self._agents = agents
        self._legs = legs
        self._homes = homes
        self._load = load
        self._metrics = metrics
        self._clock = clock
        self._new_id = new_id

    async def serve(self, request: Request, responder: Responder) -> None:
        """Answer a completion request. Raises ApiError where there is no answer to pass on."""
        started = self._clock.now()
        turn = self._identify(request, started)
        report = turn.report
        self._metrics.in_flight.inc()
        try:
            await self._run(turn, responder)
        except ApiError as error:
            report.status = error.status
            report.error = report.error or error.err_type
            error.headers = (*error.headers, report.header())
            raise
        except BaseException as error:
            gone = isinstance(error, asyncio.CancelledError | ClientDisconnected)
            self._failed(report, "ClientGone" if gone else "InternalServerError")
            raise
        finally:
            report.status = report.status or responder.status
            report.seconds["total"] = self._clock.now() - started
            self._metrics.in_flight.dec()
            self._metrics.turn_finished(report)
            log.info("turn_finished", **report.log_fields())

    def _identify(self, request: Request, started: float) -> Turn:
        tenant = self._tenancy.tenant_of(request.header(b"authorization"))
        body = parse_body(request.body)
        traits = traits_of(body)
        traits = replace(traits, model=traits.model or self._planner.default_model())
        identity = identify(self._secret, tenant, body.fields, request.headers)
        turn_id = self._new_id()
        if body.stripped:
            log.warning("client_transfer_params_stripped", request_id=request.id, tenant=tenant)
        overrides = engine_overrides(identity, body.fields)
        report = TurnReport(
            turn_id, request.id, tenant=tenant, session_key=identity.session_key,
            model=traits.model,
        )  # fmt: skip
        leg = LegRequest(request, turn_id, body.fields, overrides)
        return Turn(identity, traits, leg, report, started)

    async def _run(self, turn: Turn, responder: Responder) -> None:
        plan = self._plan(turn)
        with self._load.leg(plan.decode.engine_id):
            params = None
            if turn.traits.two_legged:
                with self._load.leg(plan.prefill.engine_id):
                    answer = await self._prefill(turn, plan)
                if answer.status != 200:
                    headers = client_headers(answer.headers, (turn.report.header(),))
                    responder.respond(answer.status, headers, answer.body)
                    return
                params = self._decode_params(turn, answer)
            await self._decode(turn, plan, params, responder)

    def _plan(self, turn: Turn) -> Plan:
        request = TurnRequest(
            model=turn.traits.model,
            session_key=turn.identity.session_key,
            skips_prefix_cache=not turn.traits.claimable,
        )
        plan = self._planner.plan_for_client(request)
        report = turn.report
        report.decision, report.reason = plan.decision, plan.reason
        report.decode = plan.decode.engine_id
        report.prefill = plan.prefill.engine_id if turn.traits.two_legged else ""
        report.offered_tokens = plan.handle_tokens
        return plan

    # Acquire.

    async def _claim(self, turn: Turn, plan: Plan) -> Claim | None:
        """The home's grant, or None: then the turn is a recompute, with the denial reported."""
        if plan.home is None:
            return None
        wanted = Wanted(
            claim_id=self._new_id(),
            tenant=turn.identity.tenant,
            session_key=turn.identity.session_key,
            engine_id=plan.home.engine_id,
            agent_address=plan.home.agent_address,
            hint_handle_id=plan.handle_id,
        )
        report, started = turn.report, self._clock.now()
        try:
            claim = await self._agents.acquire(wanted)
        except ContraflowError as error:
            denied = not isinstance(error, CallFailed)
            report.decision = Decision.RECOMPUTE
            report.reason = PlanReason.ACQUIRE_DENIED if denied else PlanReason.ACQUIRE_TIMEOUT
            report.denial = denial_of(error)
            return None
        finally:
            # Claimed or denied, our own belief in a handle at home is used up.
            self._homes.forget(turn.identity.session_key)
            report.seconds["acquire"] = self._clock.now() - started
        report.offered_tokens = claim.num_tokens
        return claim

    # Prefill.

    async def _prefill(self, turn: Turn, plan: Plan) -> PrefillAnswer:
        claim = await self._claim(turn, plan)
        started = self._clock.now()
        try:
            answer = await self._pulling_prefill(turn, plan, claim) if claim else None
            if answer is None:
                params = self._with_instructions(turn, for_plain_prefill(), Decision.RECOMPUTE)
                answer = await self._legs.prefill(plan.prefill, self._leg(turn), params)
        except UpstreamError as error:
            raise self._unanswered(turn, "prefill", error) from error
        finally:
            turn.report.seconds["prefill"] = self._clock.now() - started
        turn.report.pull = answer.pull
        return answer

    async def _pulling_prefill(self, turn: Turn, plan: Plan, claim: Claim) -> PrefillAnswer | None:
        """The prefill leg with a handle; None if it failed so that it may go without."""
        params = self._with_instructions(
            turn, for_pulling_prefill(claim.params), Decision.PULL, claim
        )
        try:
            answer = await self._legs.prefill(plan.prefill, turn.leg, params)
        except UpstreamError as error:
            if not error.bytes_sent:
                self._give_back(claim)
            if not isinstance(error, UpstreamReset):
                raise
            log.warning("prefill_retried", turn_id=turn.report.turn_id, error=str(error))
            turn.report.retried = True
            return None
        if answer.pull is not None and answer.pull.outcome.startswith(_DECLINED):
            self._give_back(claim)
        if answer.status < 500:
            return answer
        log.warning("prefill_retried", turn_id=turn.report.turn_id, status=answer.status)
        turn.report.retried = True
        return None

    def _give_back(self, claim: Claim) -> None:
        self._agents.give_back(claim.claim_id, claim.engine_id, claim.agent_address)

    def _leg(self, turn: Turn) -> LegRequest:
        # A first try may still be running in the engine, and is ended by its id.
        return replace(turn.leg, leg_id=self._new_id()) if turn.report.retried else turn.leg

    def _with_instructions(
        self, turn: Turn, params: Params, decision: str, claim: Claim | None = None
    ) -> Params:
        instructions = Instructions(
            tenant=turn.identity.tenant,
            session_key=turn.identity.session_key,
            turn_id=turn.report.turn_id,
            claim_id=claim.claim_id if claim else "",
            decision=decision,
            min_pull_tokens=self._planner.policy.recompute_threshold_tokens,
            proof=claim.proof if claim else None,
        )
        return {**params, OURS: instructions.to_json()}

    # Decode.

    def _decode_params(self, turn: Turn, answer: PrefillAnswer) -> Params:
        usable = answer.params is not None and has_remote_blocks(answer.params)
        params = for_decode(answer.params or {}) if usable else for_plain_decode()
        params = self._with_instructions(turn, params, turn.report.decision)
        if usable and answer.tip is not None:
            params[OURS]["tip"] = answer.tip
        return params

    async def _decode(
        self, turn: Turn, plan: Plan, params: Params | None, responder: Responder
    ) -> None:
        report = turn.report

        def first_byte() -> None:
            report.seconds["ttft"] = self._clock.now() - turn.started

        try:
            async with self._legs.decode(plan.decode, turn.leg, params) as response:
                await relay(response, responder, (report.header(),), first_byte)
        except (UpstreamError, SseEventTooLarge) as error:
            if not responder.started and isinstance(error, UpstreamError):
                raise self._unanswered(turn, "decode", error) from error
            # The client sees a cut response: that is how it learns that it is incomplete.
            self._failed(report, type(error).__name__)
            log.warning("stream_broken", turn_id=report.turn_id, error=str(error))
            responder.abort()
            return
        if responder.status == 200 and params is not None and turn.identity.session_key:
            self._homes.remember(turn.identity.session_key, plan.decode.engine_id)

    def _failed(self, report: TurnReport, kind: str) -> None:
        report.error = kind
        self._metrics.error(kind)

    def _unanswered(self, turn: Turn, role: str, error: UpstreamError) -> ApiError:
        turn.report.error = type(error).__name__
        log.warning("engine_unanswered", turn_id=turn.report.turn_id, role=role, error=str(error))
        if isinstance(error, UpstreamTimeout):
            return ApiError(504, f"The {role} engine did not answer in time.")
        return ApiError(502, f"The {role} engine did not answer.")
