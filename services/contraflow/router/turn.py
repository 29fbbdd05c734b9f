"""A turn: identify, plan, acquire, prefill, decode. What is decided is decided in the core."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import structlog

from contraflow.core.fleet import Engine
from contraflow.core.plan import Plan
from contraflow.core.transfer_params import (
    OURS,
    Params,
    for_decode,
    for_plain_decode,
    has_remote_blocks,
)
from contraflow.router.affinity import Homes, Load, Produced, Replies
from contraflow.router.costs import Costs
from contraflow.router.decode import Decode
from contraflow.router.legs import LegRequest, PrefillAnswer
from contraflow.router.metrics import RouterMetrics
from contraflow.router.planning import Planner
from contraflow.router.prefill import Prefill
from contraflow.router.relay import Aborted, ClientResponse, client_headers
from contraflow.router.releases import Releases
from contraflow.router.replies import ReplyReader
from contraflow.router.report import TurnReport
from contraflow.router.sessions import engine_overrides, identify
from contraflow.router.tenancy import Tenancy
from contraflow.router.turn_body import traits_of
from contraflow.router.turn_context import Turn
from contraflow.runtime.clock import Clock
from contraflow.web import (
    ApiError,
    ClientDisconnected,
    Request,
    SseEventTooLarge,
    UpstreamError,
    UpstreamTimeout,
    parse_body,
)

log = structlog.get_logger()

Observer = Callable[[TurnReport], Awaitable[None]]
"""Called once a turn is planned, with the report that is filled from then on."""


class Turns:
    """Serves turns. One for each process."""

    def __init__(
        self,
        *,
        secret: bytes,
        tenancy: Tenancy,
        planner: Planner,
        prefill: Prefill,
        decode: Decode,
        releases: Releases,
        homes: Homes,
        replies: Replies,
        load: Load,
        costs: Costs,
        metrics: RouterMetrics,
        clock: Clock,
        new_id: Callable[[], str],
    ) -> None:
        self._secret = secret
        self._tenancy = tenancy
        self._planner = planner
        self._prefill = prefill
        self._decode = decode
        self._releases = releases
        self._homes = homes
        self._replies = replies
        self._load = load
        self._costs = costs
        self._metrics = metrics
        self._clock = clock
        self._new_id = new_id

    async def serve(
        self, request: Request, responder: ClientResponse, observer: Observer | None = None
    ) -> None:
        """Answer a completion request. Raises ApiError where there is no answer to pass on."""
        started = self._clock.now()
        await self._planner.heard()
        turn = self._identify(request, started)
        report = turn.report
        self._metrics.in_flight.inc()
        try:
            await self._run(turn, responder, observer)
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
            self._metrics.turn_finished(report, self._costs.learn(report))
            log.info("turn_finished", **report.log_fields())

    def _identify(self, request: Request, started: float) -> Turn:
        tenant = self._tenancy.tenant_of(request.header(b"authorization"))
        body = parse_body(request.body)
        traits = traits_of(body)
        traits = replace(traits, model=traits.model or self._planner.default_model())
        identity = identify(
            self._secret, tenant, traits.model, request.path, body.fields, request.headers,
            self._planner,
        )  # fmt: skip
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

    async def _run(self, turn: Turn, responder: ClientResponse, observer: Observer | None) -> None:
        plan = self._plan(turn)
        with self._load.leg(plan.decode.engine_id):
            if observer is not None:
                await observer(turn.report)
            params = None
            if turn.report.prefill:
                with self._load.leg(turn.report.prefill):
                    answer = await self._prefill_leg(turn, plan)
                if answer is not None and answer.status != 200:
                    headers = client_headers(answer.headers, (turn.report.header(),))
                    responder.respond(answer.status, headers, answer.body)
                    return
                params = self._decode_params(turn, answer)
            elif turn.traits.two_legged:
                # Blocks that nobody can read would stay pinned: decode computes the prompt.
                params = turn.instruct(for_plain_decode(), turn.report.decision)
            try:
                await self._decode_leg(turn, plan, params, responder)
            finally:
                if params is not None and not turn.report.taken:
                    self._releases.untaken(params, self._planner.agent_address)

    def _plan(self, turn: Turn) -> Plan:
        request = turn.identity.request(
            turn.traits.model, skips_prefix_cache=not turn.traits.claimable
        )
        draw = self._costs.draw()
        plan = self._planner.plan_for_client(request, draw)
        report = turn.report
        report.explores = self._costs.took(request.model, plan, draw)
        report.holder = plan.holder.engine_id if plan.holder else ""
        report.lookup_key = request.lookup_key
        report.decision, report.reason = plan.decision, plan.reason
        report.decode = plan.decode.engine_id
        legs = turn.traits.two_legged and plan.hands_over
        report.prefill = plan.prefill.engine_id if legs and plan.prefill else ""
        report.offered_tokens = plan.handle_tokens
        return plan

    async def _prefill_leg(self, turn: Turn, plan: Plan) -> PrefillAnswer | None:
        try:
            return await self._prefill.run(turn, plan)
        except UpstreamError as error:
            raise self._unanswered(turn, "prefill", error) from error

    def _decode_params(self, turn: Turn, answer: PrefillAnswer | None) -> Params:
        if answer is None or answer.params is None or not has_remote_blocks(answer.params):
            return turn.instruct(for_plain_decode(), turn.report.decision)
        params = turn.instruct(for_decode(answer.params), turn.report.decision)
        if answer.tip is not None:
            params[OURS]["tip"] = answer.tip
        return params

    async def _decode_leg(
        self, turn: Turn, plan: Plan, params: Params | None, responder: ClientResponse
    ) -> None:
        report, key = turn.report, turn.identity.session_key

        def first_byte() -> None:
            report.seconds["ttft"] = self._clock.now() - turn.started

        def end(engine: Engine, reader: ReplyReader | None) -> None:
            if not turn.retains(params):
                return
            self._homes.remember(key, engine.engine_id)
            if reader is not None and (digest := reader.digest):
                produced = Produced(report.turn_id, engine.engine_id)
                self._replies.remember(key, digest, produced)
            self._releases.outlived(turn, plan)

        try:
            await self._decode.run(turn, plan, params, responder, first_byte, end)
        except (UpstreamError, Aborted, SseEventTooLarge) as error:
            if not responder.started and not isinstance(error, SseEventTooLarge):
                raise self._unanswered(turn, "decode", error) from error
            # The client sees a cut response: that is how it learns that it is incomplete.
            self._failed(report, type(error).__name__)
            log.warning("stream_broken", turn_id=report.turn_id, error=str(error))
            responder.abort()

    def _failed(self, report: TurnReport, kind: str) -> None:
        report.error = kind
        self._metrics.error(kind)

    def _unanswered(self, turn: Turn, role: str, error: UpstreamError | Aborted) -> ApiError:
        turn.report.error = type(error).__name__
        log.warning("engine_unanswered", turn_id=turn.report.turn_id, role=role, error=str(error))
        if isinstance(error, UpstreamTimeout):
            return ApiError(504, f"The {role} engine did not answer in time.")
        return ApiError(502, f"The {role} engine did not answer.")
