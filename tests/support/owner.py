"""An agent that owns handles: a real table for each decode engine, filled by its turns."""

from __future__ import annotations

from collections import defaultdict

from contraflow.core.fleet import Session
from contraflow.core.handle import ClaimRequest, Handle, HandleTable, State
from contraflow.core.instructions import Instructions
from contraflow.runtime.clock import SystemClock
from contraflow.runtime.fleet_replica import FleetReplica
from contraflow.runtime.grpc_interceptor import Context
from contraflow.v1 import agent_service_pb2 as pb
from contraflow.v1 import handle_pb2
from contraflow.wire.convert import duration, proof_to_proto
from contraflow.wire.params import params_to_proto
from tests.support.fake_engine import FakeEngine, Received
from tests.support.router_world import HANDLE_PARAMS, PROOF, FakeAgent


class Owner(FakeAgent):
    """Retains what its engines decode, and takes every claim as read at once."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, HandleTable] = defaultdict(HandleTable)

    def attach(self, engine: FakeEngine) -> None:
        """From now on each turn that ``engine`` decodes leaves a handle."""

        async def retain(received: Received) -> None:
            self._retain(engine.engine.engine_id, received)

        engine.script.before_answer = retain

    def publish(self, *replicas: FleetReplica) -> None:
        """Bring the records of all live handles to routers, as the directory would."""
        records: dict[str, Session] = {}
        for engine_id, table in self.tables.items():
            for handle in table.live():
                before = records.get(handle.session_key)
                same = before is not None and before.engine_id == engine_id
                records[handle.session_key] = Session(
                    handle.session_key, engine_id, "", handle.handle_id, handle.num_tokens,
                    SystemClock().now() + 480, handle.message_digest,
                    branches=before.branches + 1 if before and same else 1,
                )  # fmt: skip
        for replica in replicas:
            replica.sessions = dict(records)
            for record in records.values():
                replica._announce(None, record)

    async def AcquireHandle(
        self, request: pb.AcquireHandleRequest, context: Context
    ) -> pb.AcquireHandleResponse:
        self.acquired.append(request)
        wanted = ClaimRequest(
            request.claim_id, request.tenant, request.session_key, 60.0, 10.0,
            tuple(request.message_digests), request.hint_handle_id, request.produced_by_turn_id,
        )  # fmt: skip
        table = self.tables[request.engine_id]
        handle = table.acquire(wanted, 0.0)
        table.end(handle.request_id, State.READ)
        return pb.AcquireHandleResponse(
            handle=handle_pb2.Handle(handle_id=handle.handle_id, num_tokens=handle.num_tokens),
            transfer_params=params_to_proto(HANDLE_PARAMS),
            proof=proof_to_proto(PROOF),
            start_by=request.start_by,
            hold_until=duration(70),
        )

    def _retain(self, engine_id: str, received: Received) -> None:
        told = Instructions.from_json(received.params["contraflow"])
        if not told.session_key:
            return
        handle = Handle(
            handle_id=f"{engine_id}/{told.turn_id}",
            request_id=told.turn_id,
            tenant=told.tenant,
            session_key=told.session_key,
            num_tokens=299,
            num_blocks=10,
            proof=PROOF,
            params={},
            deadline=480.0,
            message_digest=told.message_digest,
            turn_id=told.turn_id,
        )
        self.tables[engine_id].retain(handle, lambda proof: False)
