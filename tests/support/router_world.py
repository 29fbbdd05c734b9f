"""A router in this process, between fake engines and a fake agent, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp

from contraflow.core.chain import Proof
from contraflow.core.errors import ClaimNotFound, ContraflowError
from contraflow.core.fleet import Engine, Role, Session
from contraflow.core.handle_use import DecideUse, by_size
from contraflow.core.session import session_key
from contraflow.router.app import RouterApp
from contraflow.router.config import RouterConfig
from contraflow.router.report import parse_header
from contraflow.runtime.address import Address
from contraflow.runtime.clock import SystemClock
from contraflow.runtime.config import parse
from contraflow.runtime.fleet_replica import FleetReplica
from contraflow.runtime.grpc_interceptor import Context
from contraflow.runtime.grpc_server import GrpcServer, Limits
from contraflow.v1 import agent_service_pb2 as pb
from contraflow.v1 import agent_service_pb2_grpc as pb_grpc
from contraflow.v1 import handle_pb2
from contraflow.v1.directory_service_pb2 import SnapshotEnd, WatchResponse
from contraflow.web import HttpServer
from contraflow.wire.convert import duration, proof_to_proto
from contraflow.wire.params import params_to_proto
from tests.support.fake_engine import FakeEngine

SECRET = b"0123456789abcdef"
SESSION = {"session_id": "conversation-1"}
KEY = session_key(SECRET, "default", SESSION["session_id"])
HANDLE_PARAMS: dict[str, Any] = {
    "do_remote_prefill": False,
    "do_remote_decode": True,
    "remote_block_ids": [[7, 8, 9], []],
    "remote_engine_id": "d1",
    "remote_request_id": "chatcmpl-turn-1",
    "remote_host": "fd00::1",
    "remote_port": 5602,
    "tp_size": 8,
    "remote_num_tokens": 299,
    "remote_blocks_expiry_time": 98765.4321,
    "remote_registration_generation": 2,
    "future_key": {"nested": [None, 1.5, "\u00e9"]},
    "null_key": None,
}
PROOF = Proof(block_size=32, num_tokens=299, digests=bytes(range(72)), tip=bytes(16))


class FakeAgent(pb_grpc.AgentServiceServicer):
    """Grants every claim until told otherwise, and keeps what it granted."""

    def __init__(self) -> None:
        self.denial: ContraflowError | None = None
        self.hold: asyncio.Event | None = None
        self.acquired: list[pb.AcquireHandleRequest] = []
        self.returned: list[str] = []
        self.live: set[str] = set()

    async def AcquireHandle(
        self, request: pb.AcquireHandleRequest, context: Context
    ) -> pb.AcquireHandleResponse:
        self.acquired.append(request)
        if self.denial is not None:
            raise self.denial
        self.live.add(request.claim_id)
        if self.hold is not None:
            await self.hold.wait()
        return pb.AcquireHandleResponse(
            handle=handle_pb2.Handle(handle_id="d1/chatcmpl-turn-1", num_tokens=299),
            transfer_params=params_to_proto(HANDLE_PARAMS),
            proof=proof_to_proto(PROOF),
            start_by=request.start_by,
            hold_until=duration(70),
        )

    async def ReturnClaim(
        self, request: pb.ReturnClaimRequest, context: Context
    ) -> pb.ReturnClaimResponse:
        self.returned.append(request.claim_id)
        if request.claim_id not in self.live:
            raise ClaimNotFound("no such claim")
        self.live.discard(request.claim_id)
        return pb.ReturnClaimResponse()


@dataclass(slots=True)
class World:
    """What a test touches."""

    url: str
    app: RouterApp
    replica: FleetReplica
    prefill: FakeEngine
    decode: FakeEngine
    agent: FakeAgent
    agent_address: str
    client: aiohttp.ClientSession
    grpc: GrpcServer = field(repr=False)

    async def stop_agent(self) -> None:
        """From now on its address refuses connections."""
        await self.grpc.stop(0)

    def know(self, *engines: Engine) -> None:
        """Let the directory bring engines."""
        for engine in engines:
            self.replica.engines[engine.engine_id] = engine

    def know_session(self, tenant: str = "default", tokens: int = 299, **fields: Any) -> str:
        """Let the directory bring the record of SESSION; returns its key."""
        key = session_key(SECRET, tenant, SESSION["session_id"])
        session = {
            "session_key": key,
            "engine_id": "d1",
            "agent_address": self.agent_address,
            "handle_id": "d1/chatcmpl-turn-1",
            "num_tokens": tokens,
            "expires_at": SystemClock().now() + 480,
            "retained_at": SystemClock().now(),
            **fields,
        }
        self.replica.sessions[key] = Session(**session)
        return key

    async def chat(self, **fields: Any) -> Answer:
        """A chat turn, read to its end."""
        headers = fields.pop("headers", {})
        path = fields.pop("path", "/v1/chat/completions")
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **fields}
        async with self.client.post(self.url + path, json=body, headers=headers) as response:
            return Answer(response.status, response.headers, await response.read())


@dataclass(frozen=True, slots=True)
class Answer:
    """A response that has been read."""

    status: int
    headers: Any
    raw: bytes

    @property
    def plan(self) -> dict[str, str]:
        """The pairs of the x-contraflow header."""
        return parse_header(self.headers["x-contraflow"])


def config_of(extra: str = "") -> RouterConfig:
    """A configuration whose addresses are not used."""
    text = f"""
listen = "127.0.0.1:0"
grpc_listen = "127.0.0.1:0"
directory = ["127.0.0.1:1"]
cluster_secret = "{SECRET.decode()}"
acquire_deadline_seconds = 5.0
{extra}
"""
    return parse(text, RouterConfig, "test")


def following_replica() -> FleetReplica:
    """One that has just heard of an empty directory."""
    replica = FleetReplica(SystemClock())
    replica.begin()
    replica.apply(WatchResponse(snapshot_end=SnapshotEnd(), revision=1))
    return replica


@asynccontextmanager
async def router_world(
    config: RouterConfig | None = None,
    agent: FakeAgent | None = None,
    decide_use: DecideUse = by_size,
) -> AsyncIterator[World]:
    """1P1D: prefill engine p1, decode engine d1, one agent, a router that knows them."""
    agent = agent or FakeAgent()  # type: ignore[abstract]  # the router calls only two methods
    grpc = GrpcServer("agent", Limits())
    grpc.add(pb_grpc.add_AgentServiceServicer_to_server, agent, "contraflow.v1.AgentService")
    address = str(grpc.listen(Address(host="127.0.0.1", port=0)))
    await grpc.start()
    replica = following_replica()
    app = RouterApp(config or config_of(), SECRET, replica, SystemClock(), decide_use=decide_use)
    http = HttpServer(app.routes.handle)
    port = await http.listen("127.0.0.1", 0)
    async with (
        FakeEngine("p1", Role.PREFILL, agent_address=address) as prefill,
        FakeEngine("d1", Role.DECODE, agent_address=address) as decode,
        aiohttp.ClientSession() as client,
    ):
        world = World(
            f"http://127.0.0.1:{port}", app, replica, prefill, decode, agent, address, client, grpc
        )
        world.know(prefill.engine, decode.engine)
        try:
            yield world
        finally:
            await client.close()
            await http.shutdown(5.0)
            await grpc.stop(0)
            await app.close()


@asynccontextmanager
async def another_router(world: World, config: RouterConfig | None = None) -> AsyncIterator[World]:
    """Of the same cluster; it has seen nothing of what the first one did."""
    replica = following_replica()
    replica.engines = world.replica.engines
    app = RouterApp(config or config_of(), SECRET, replica, SystemClock())
    http = HttpServer(app.routes.handle)
    port = await http.listen("127.0.0.1", 0)
    try:
        yield replace(world, url=f"http://127.0.0.1:{port}", app=app, replica=replica)
    finally:
        await http.shutdown(5.0)
        await app.close()
