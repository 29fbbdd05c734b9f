"""An agent that owns handles: a real table for each decode engine, filled by its turns."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from contraflow.core.fleet import Session
from contraflow.core.handle import ClaimRequest, Handle, HandleTable, State
from contraflow.core.handle_use import DecideUse, by_size
from contraflow.core.instructions import Instructions
from contraflow.router.config import RouterConfig
from contraflow.runtime.clock import SystemClock
from contraflow.runtime.fleet_replica import FleetReplica
from contraflow.runtime.grpc_interceptor import Context
from contraflow.v1 import agent_service_pb2 as pb
from contraflow.v1 import handle_pb2
from contraflow.v1.transfer_params_pb2 import TransferParams
from contraflow.wire.convert import duration, proof_to_proto
from contraflow.wire.params import params_to_proto
from tests.support.fake_engine import FakeEngine, Received
from tests.support.router_world import HANDLE_PARAMS, PROOF, FakeAgent, World, router_world


class Owner(FakeAgent):
    """Retains what its engines decode, and takes every claim as read at once.

    With ``readers`` a claim is read when one of them gets it and does not decline.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, HandleTable] = defaultdict(HandleTable)
        self.attached: set[str] = set()
        """Ids of the engines whose handles are told."""
        self.readers: list[FakeEngine] = []
        self.reads: list[str] = []
        self.spoil = False
        """Grants can not be read."""
        self.break_down = False
        """It claims, and then fails."""
        self.released: list[str] = []
        self.release_calls: list[list[str]] = []
        self.list_calls = 0
        self.hold_lists: asyncio.Event | None = None

    def attach(self, engine: FakeEngine) -> None:
        """From now on each turn that ``engine`` decodes leaves a handle."""

        async def retain(received: Received) -> None:
            if received.status == 200:
                self._retain(engine.engine.engine_id, received)

        engine.script.before_answer = retain
        self.attached.add(engine.engine.engine_id)

    def attach_reader(self, engine: FakeEngine) -> None:
        """From now on ``engine`` reads the handles that come with a claim."""

        async def read(received: Received) -> None:
            claim_id = Instructions.from_json(received.params["contraflow"]).claim_id
            pull = engine.script.pull(received)
            if claim_id and not (pull and pull.outcome.startswith("DECLINED")):
                self.read(claim_id)

        engine.script.before_answer = read
        self.readers.append(engine)

    def handles(self, engine_id: str = "") -> dict[str, State]:
        """The handles there are, by the turns that left them."""
        return {
            handle.turn_id: handle.state
            for one, table in self.tables.items()
            for handle in table.live()
            if engine_id in ("", one)
        }

    def publish(self, *replicas: FleetReplica) -> None:
        """Bring the records of all live handles to routers, as the directory would."""
        records: dict[str, Session] = {}
        for engine_id, table in self.tables.items():
            for handle in table.live():
                before = records.get(handle.session_key)
                same = before is not None and before.engine_id == engine_id
                records[handle.session_key] = Session(
                    handle.session_key, engine_id, "", handle.handle_id, handle.num_tokens,
                    SystemClock().now() + 480, handle.retained_at, handle.message_digest,
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
        if self.denial is not None:
            raise self.denial
        wanted = ClaimRequest(
            request.claim_id, request.tenant, request.session_key, 60.0, 10.0,
            tuple(request.message_digests), request.hint_handle_id, request.produced_by_turn_id,
        )  # fmt: skip
        table = self.tables[request.engine_id]
        handle = table.acquire(wanted, 0.0)
        if not self.readers:
            table.end(handle.request_id, State.READ)
        if self.hold is not None:
            await self.hold.wait()
        if self.break_down:
            raise RuntimeError("a defect")
        return pb.AcquireHandleResponse(
            handle=handle_pb2.Handle(handle_id=handle.handle_id, num_tokens=handle.num_tokens),
            transfer_params=TransferParams(extra_json={"spoilt": "{"})
            if self.spoil
            else params_to_proto(HANDLE_PARAMS),
            proof=proof_to_proto(PROOF),
            start_by=request.start_by,
            hold_until=duration(70),
        )

    async def ReturnClaim(
        self, request: pb.ReturnClaimRequest, context: Context
    ) -> pb.ReturnClaimResponse:
        self.returned.append(request.claim_id)
        self.tables[request.engine_id].return_claim(request.claim_id, 0.0)
        return pb.ReturnClaimResponse()

    async def ListHandles(
        self, request: pb.ListHandlesRequest, context: Context
    ) -> pb.ListHandlesResponse:
        self.list_calls += 1
        if self.hold_lists is not None:
            await self.hold_lists.wait()
        handles = [
            handle_pb2.Handle(
                handle_id=handle.handle_id,
                tenant=handle.tenant,
                session_key=handle.session_key,
                message_digest=handle.message_digest,
                turn_id=handle.turn_id,
                claim_id=handle.claim.claim_id if handle.claim else "",
            )
            for engine_id, table in self.tables.items()
            for handle in table.live()
            if engine_id in self.attached and request.session_key in ("", handle.session_key)
        ]
        return pb.ListHandlesResponse(handles=handles, engine_ids=sorted(self.attached))

    async def ReleaseHandles(
        self, request: pb.ReleaseHandlesRequest, context: Context
    ) -> pb.ReleaseHandlesResponse:
        self.release_calls.append(list(request.handle_ids))
        ended = [one for table in self.tables.values() for one in table.release(request.handle_ids)]
        self.released += [handle.turn_id for handle in ended]
        return pb.ReleaseHandlesResponse(released_handle_ids=[one.handle_id for one in ended])

    def read(self, claim_id: str) -> None:
        """A prefill engine has read what the claim is on."""
        for table in self.tables.values():
            for handle in table.live():
                if handle.claim is not None and handle.claim.claim_id == claim_id:
                    self.reads.append(handle.turn_id)
                    table.end(handle.request_id, State.READ)

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
            retained_at=0.0,
            message_digest=told.message_digest,
            turn_id=told.turn_id,
        )
        self.tables[engine_id].retain(handle, lambda proof: False)


@asynccontextmanager
async def owned_world(
    config: RouterConfig | None = None, decide_use: DecideUse = by_size
) -> AsyncIterator[tuple[World, Owner]]:
    """p1, which reads what it is handed, and d1, which retains what it decodes."""
    owner = Owner()  # type: ignore[abstract]  # the router calls only some methods
    async with router_world(config, owner, decide_use) as world:
        owner.attach(world.decode)
        owner.attach_reader(world.prefill)
        yield world, owner
