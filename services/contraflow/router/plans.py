"""PlanTurn: what would be done with a turn, and what it would cost."""

from __future__ import annotations

from contraflow.core.cost import Estimate, estimates
from contraflow.core.errors import InvalidArgument
from contraflow.core.plan import Candidate, Plan
from contraflow.router.affinity import Load
from contraflow.router.costs import Costs
from contraflow.router.generate_request import CHAT
from contraflow.router.planning import Planner
from contraflow.router.sessions import identify
from contraflow.router.turn_body import traits_of
from contraflow.v1 import router_service_pb2 as pb
from contraflow.web import BodyError, parse_body
from contraflow.web.json_splice import as_raw
from contraflow.wire.convert import duration, engine_to_proto


class Plans:
    """Answers PlanTurn, with the very code that plans a turn of the front door."""

    def __init__(self, secret: bytes, planner: Planner, load: Load, costs: Costs) -> None:
        self._secret = secret
        self._planner = planner
        self._load = load
        self._costs = costs

    def answer(self, request: pb.PlanTurnRequest, tenant: str) -> pb.PlanTurnResponse:
        """Raises InvalidArgument and NoEligibleEngine."""
        if not tenant:
            raise InvalidArgument(
                'a tenant is needed: "default" where none are configured', field="tenant"
            )
        try:
            body = parse_body(request.openai_json.encode() or b"{}")
            if request.session_id:
                body.fields["session_id"] = as_raw(request.session_id)
            traits = traits_of(body)
            model = request.model or traits.model or self._planner.default_model()
            identity = identify(self._secret, tenant, model, CHAT, body.fields, (), self._planner)
        except BodyError as error:
            raise InvalidArgument(str(error), field="openai_json") from error
        plan = self._planner.plan(identity.request(model, skips_prefix_cache=not traits.claimable))
        response = plan_to_proto(plan, self._load)
        if not (traits.two_legged and plan.hands_over):
            response.prefill_engine_id = ""
        response.session_key = identity.session_key
        if plan.prefill is not None:
            found = estimates(self._costs.expect(model, plan), plan, request.prompt_tokens)
            response.estimates.extend(_estimate(one) for one in found)
        return response


def plan_to_proto(plan: Plan, load: Load) -> pb.PlanTurnResponse:
    """A plan as it travels."""
    return pb.PlanTurnResponse(
        decision=f"DECISION_{plan.decision}",
        reason=f"DECISION_REASON_{plan.reason}",
        prefill_engine_id=plan.prefill.engine_id if plan.prefill else "",
        decode_engine_id=plan.decode.engine_id,
        handle_id=plan.handle_id,
        handle_tokens=plan.handle_tokens,
        # Of a plan they come in the order of a hash.
        candidates=[
            _candidate(one, plan, load)
            for one in sorted(
                plan.candidates, key=lambda one: (one.engine.role, one.engine.engine_id)
            )
        ],
    )


def _candidate(candidate: Candidate, plan: Plan, load: Load) -> pb.Candidate:
    engine = candidate.engine
    return pb.Candidate(
        engine_id=engine.engine_id,
        role=engine_to_proto(engine).role,
        score=candidate.score,
        rejected_reason=candidate.rejected,
        endpoint=engine.endpoint,
        load=load.by_engine.get(engine.engine_id, 0),
        home=plan.holder is not None and plan.holder.engine_id == engine.engine_id,
    )


def _estimate(cost: Estimate) -> pb.CostEstimate:
    return pb.CostEstimate(
        decision=f"DECISION_{cost.decision}",
        pulled_tokens=cost.pulled_tokens,
        computed_tokens=cost.computed_tokens,
        time=duration(cost.time.seconds),
        error=duration(cost.time.error),
    )
