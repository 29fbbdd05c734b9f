"""RouterService: decodes, asks the planner, encodes."""

from __future__ import annotations

from contraflow.core.errors import InvalidArgument
from contraflow.core.plan import Plan, TurnRequest
from contraflow.core.session import session_key
from contraflow.router.planning import Planner
from contraflow.runtime.fleet_replica import FleetReplica
from contraflow.runtime.grpc_interceptor import Context
from contraflow.v1 import router_service_pb2 as pb
from contraflow.v1 import router_service_pb2_grpc as pb_grpc
from contraflow.wire.convert import duration, engine_to_proto

SERVICE = "contraflow.v1.RouterService"

# A Duration can not say "never".
_MAX_AGE_SECONDS = 10 * 365 * 86_400.0


class RouterServicer(pb_grpc.RouterServiceServicer):
    """What the router would do, and what it knows."""

    def __init__(self, secret: bytes, planner: Planner, replica: FleetReplica) -> None:
        self._secret = secret
        self._planner = planner
        self._replica = replica

    async def PlanTurn(self, request: pb.PlanTurnRequest, context: Context) -> pb.PlanTurnResponse:
        if not request.tenant:
            raise InvalidArgument("a tenant is needed", field="tenant")
        key = ""
        if request.session_id:
            key = session_key(self._secret, request.tenant, request.session_id)
        model = request.model or self._planner.default_model()
        return plan_to_proto(self._planner.plan(TurnRequest(model, key)))

    async def ListViewEngines(
        self, request: pb.ListViewEnginesRequest, context: Context
    ) -> pb.ListViewEnginesResponse:
        engines = sorted(self._replica.engines.values(), key=lambda engine: engine.engine_id)
        return pb.ListViewEnginesResponse(
            engines=[engine_to_proto(engine) for engine in engines],
            revision=self._replica.revision,
            age=duration(min(self._replica.age(), _MAX_AGE_SECONDS)),
        )


def plan_to_proto(plan: Plan) -> pb.PlanTurnResponse:
    """A plan as it travels."""
    return pb.PlanTurnResponse(
        decision=f"DECISION_{plan.decision}",
        reason=f"DECISION_REASON_{plan.reason}",
        prefill_engine_id=plan.prefill.engine_id,
        decode_engine_id=plan.decode.engine_id,
        handle_id=plan.handle_id,
        handle_tokens=plan.handle_tokens,
        candidates=[
            pb.Candidate(
                engine_id=candidate.engine.engine_id,
                role=engine_to_proto(candidate.engine).role,
                score=candidate.score,
                rejected_reason=candidate.rejected,
            )
            for candidate in plan.candidates
        ],
    )
