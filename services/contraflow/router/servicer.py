"""RouterService: decodes, asks, encodes."""

from __future__ import annotations

from contraflow.core.errors import TenantMismatch
from contraflow.router.end_session import SessionEnds
from contraflow.router.generate import Generations, headers_of
from contraflow.router.generate_errors import of_router
from contraflow.router.plans import Plans
from contraflow.router.tenancy import Tenancy
from contraflow.runtime.fleet_replica import FleetReplica
from contraflow.runtime.grpc_interceptor import Context
from contraflow.v1 import router_service_pb2 as pb
from contraflow.v1 import router_service_pb2_grpc as pb_grpc
from contraflow.web import ApiError, find_header
from contraflow.wire.convert import duration, engine_to_proto

SERVICE = "contraflow.v1.RouterService"

# A Duration can not say "never".
_MAX_AGE_SECONDS = 10 * 365 * 86_400.0


class RouterServicer(pb_grpc.RouterServiceServicer):
    """Turns, what the router would do with one, and what it knows."""

    def __init__(
        self,
        generations: Generations,
        plans: Plans,
        session_ends: SessionEnds,
        tenancy: Tenancy,
        replica: FleetReplica,
    ) -> None:
        self._generations = generations
        self._plans = plans
        self._session_ends = session_ends
        self._tenancy = tenancy
        self._replica = replica

    # gRPC's other way to stream, with `context.write`, which the stub does not know: the turn
    # runs in the call's own task, so that a slow reader or a cancellation reaches it at once.
    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:  # type: ignore[override]
        await self._generations.run(request, context)

    async def PlanTurn(self, request: pb.PlanTurnRequest, context: Context) -> pb.PlanTurnResponse:
        tenant = request.tenant
        if not self._tenancy.open:
            # A plan tells of the tenant's sessions.
            tenant = self._tenant_of(context)
            if request.tenant not in ("", tenant):
                raise TenantMismatch("the credentials are another tenant's")
        return self._plans.answer(request, tenant)

    async def EndSession(
        self, request: pb.EndSessionRequest, context: Context
    ) -> pb.EndSessionResponse:
        return await self._session_ends.end(self._tenant_of(context), request.session_id)

    async def ListViewEngines(
        self, request: pb.ListViewEnginesRequest, context: Context
    ) -> pb.ListViewEnginesResponse:
        engines = sorted(self._replica.engines.values(), key=lambda engine: engine.engine_id)
        return pb.ListViewEnginesResponse(
            engines=[engine_to_proto(engine) for engine in engines],
            revision=self._replica.revision,
            age=duration(min(self._replica.age(), _MAX_AGE_SECONDS)),
        )

    def _tenant_of(self, context: Context) -> str:
        authorization = find_header(headers_of(context), b"authorization")
        try:
            return self._tenancy.tenant_of(authorization)
        except ApiError as error:
            raise of_router(error) from error
