"""Operators who end sessions and drain engines, and an intruder who wants what is not his."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any

import grpc

from contraflow.core.errors import Reason
from contraflow.core.fleet import Role
from contraflow.core.handle import Handle
from contraflow.core.session import session_key
from contraflow.runtime.grpc_errors import from_rpc_error
from contraflow.v1 import agent_service_pb2 as agent_pb
from contraflow.v1 import router_service_pb2 as router_pb
from contraflow.v1.agent_service_pb2_grpc import AgentServiceStub
from contraflow.v1.router_service_pb2_grpc import RouterServiceStub
from contraflow.verify.engines import Engine
from contraflow.verify.net import Part
from contraflow.verify.rpc import dial
from contraflow.verify.shape import TENANTS
from contraflow.verify.world import SECRET, World
from contraflow.wire.convert import duration

_MEAN_GAP_SECONDS = 3.0
_CALL_SECONDS = 5.0
_GONE = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION)


class People:
    """Each does something now and then, until they are told to ``stop``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = Random(world.random.getrandbits(64))
        self._part = Part("outside")
        self._stopped = False

    def stop(self) -> None:
        """Nothing new; what is going on is ended, an engine that drains put back."""
        self._stopped = True

    async def run(self) -> None:
        """Until stopped."""
        doings = (
            self._end_session, self._drain, self._release, self._abandon,
            self._steal, self._replay, self._grope, self._come_late,
        )  # fmt: skip
        while not self._stopped:
            await asyncio.sleep(self._random.expovariate(1 / _MEAN_GAP_SECONDS))
            with suppress(grpc.aio.AioRpcError):
                await self._random.choice(doings)()

    def _channel(self, address: str) -> grpc.aio.Channel:
        return dial(self._world.net, self._part, address)

    async def _end_session(self) -> None:
        routers = self._world.routers()
        if not routers:
            return
        router = self._random.choice(routers)
        tenant = self._random.choice(sorted(TENANTS))
        request = router_pb.EndSessionRequest(session_id=f"session-{self._random.randrange(12)}")
        metadata = (("authorization", f"Bearer {TENANTS[tenant]}"),)
        stub = RouterServiceStub(self._channel(router.address))
        await stub.EndSession(request, timeout=_CALL_SECONDS, metadata=metadata)
        self._world.seen["session ended"] += 1

    async def _drain(self) -> None:
        world = self._world
        engines = [one for process in world.engines() for one in process.engines]
        if not engines:
            return
        engine = self._random.choice(engines)
        decode = engine.options.role is Role.DECODE
        if decode and (len(world.named("decode")) < 2 or world.down.total()):
            return
        # Of prefill engines all at once: turns can do without any.
        prefills = [one for one in engines if one.options.role is Role.PREFILL]
        seconds = self._random.uniform(0, 20)
        release = self._random.random() < 0.5
        drains = (
            self._drain_one(one, seconds, release=release)
            for one in ([engine] if decode else prefills)
        )
        await asyncio.gather(*drains)

    async def _drain_one(self, engine: Engine, seconds: float, *, release: bool) -> None:
        world, decode = self._world, engine.options.role is Role.DECODE
        agents = [one for one in world.agents() if one.link_address == engine.options.agent]
        if not agents:
            return
        stub = AgentServiceStub(self._channel(agents[0].address))
        request = agent_pb.DrainEngineRequest(
            engine_id=engine.engine_id, draining=True, release_handles=release
        )
        if decode:
            world.trouble()
        try:
            with suppress(grpc.aio.AioRpcError):
                await stub.DrainEngine(request, timeout=_CALL_SECONDS)
                world.seen[f"drained {engine.options.role}"] += 1
                await asyncio.sleep(seconds)
        finally:
            undo = agent_pb.DrainEngineRequest(engine_id=engine.engine_id, draining=False)
            await self._until_done(stub, undo)
            if decode:
                world.trouble()

    async def _until_done(self, stub: Any, undo: agent_pb.DrainEngineRequest) -> None:
        while True:
            try:
                await stub.DrainEngine(undo, timeout=_CALL_SECONDS)
                return
            except grpc.aio.AioRpcError as error:
                gone = error.code() in _GONE
                if gone and not self._lives(undo.engine_id):
                    return
                await asyncio.sleep(2.0)

    def _lives(self, engine_id: str) -> bool:
        processes = self._world.engines()
        return any(engine_id == one.engine_id for process in processes for one in process.engines)

    async def _steal(self) -> None:
        """A claim on a session of the one tenant in the name of the other."""
        owner, thief = self._random.sample(sorted(TENANTS), 2)
        key = session_key(SECRET, owner, f"session-{self._random.randrange(12)}")
        await self._claim(thief, key, self._world.new_id())

    async def _replay(self) -> None:
        """A claim that lives, asked for once more by another tenant."""
        claimed = [handle for _, handle in self._live() if handle.claim is not None]
        if not claimed:
            return
        handle = self._random.choice(claimed)
        thief = next(one for one in sorted(TENANTS) if one != handle.tenant)
        assert handle.claim is not None
        await self._claim(thief, handle.session_key, handle.claim.claim_id)

    async def _claim(self, thief: str, key: str, claim_id: str) -> None:
        world = self._world
        engines = [one for process in world.engines() for one in process.engines]
        for agent in world.agents():
            stub = AgentServiceStub(self._channel(agent.address))
            for engine in engines:
                request = agent_pb.AcquireHandleRequest(
                    claim_id=claim_id, tenant=thief, session_key=key,
                    engine_id=engine.engine_id, start_by=duration(1.0),
                )  # fmt: skip
                try:
                    granted = await stub.AcquireHandle(request, timeout=_CALL_SECONDS)
                except grpc.aio.AioRpcError as error:
                    mismatch = error.code() is grpc.StatusCode.PERMISSION_DENIED
                    world.seen["denied intruder"] += mismatch
                else:
                    world.violated(
                        "NO_OTHER_TENANT", f"{thief} was granted {granted.handle.handle_id}"
                    )

    async def _abandon(self) -> None:
        """A claim of a router that dies with it."""
        retained = [(one, handle) for one, handle in self._live() if handle.claim is None]
        if retained:
            await self._ask(*self._random.choice(retained))

    async def _grope(self) -> None:
        """For one of several branches, with nothing that tells which."""
        live = self._live()
        keys = Counter(handle.session_key for _, handle in live)
        several = [(one, handle) for one, handle in live if keys[handle.session_key] > 1]
        if several:
            await self._ask(*self._random.choice(several), digests=["f" * 32])

    async def _come_late(self) -> None:
        """For a handle whose lease has run out."""
        if self._world.expired:
            await self._ask(*self._random.choice(self._world.expired))

    async def _ask(self, engine_id: str, handle: Handle, digests: Sequence[str] = ()) -> None:
        request = agent_pb.AcquireHandleRequest(
            claim_id=self._world.new_id(), tenant=handle.tenant, session_key=handle.session_key,
            engine_id=engine_id, hint_handle_id=handle.handle_id, message_digests=digests,
        )  # fmt: skip
        for agent in self._world.agents():
            stub = AgentServiceStub(self._channel(agent.address))
            try:
                await stub.AcquireHandle(request, timeout=_CALL_SECONDS)
            except grpc.aio.AioRpcError as error:
                reason = from_rpc_error(error).reason
                if reason is not Reason.ENGINE_NOT_ATTACHED:
                    self._world.seen[f"denied {reason}"] += 1

    def _live(self) -> list[tuple[str, Handle]]:
        return [
            (engine.engine_id, handle)
            for process in self._world.engines()
            for engine in process.engines
            for handle in engine.live()
        ]

    async def _release(self) -> None:
        """As an operator does: whatever is retained, claimed or not."""
        agents = self._world.agents()
        if not agents:
            return
        stub = AgentServiceStub(self._channel(self._random.choice(agents).address))
        listed = await stub.ListHandles(agent_pb.ListHandlesRequest(), timeout=_CALL_SECONDS)
        claimed = [one.handle_id for one in listed.handles if one.claim_id]
        ids = claimed or [one.handle_id for one in listed.handles]
        chosen = self._random.sample(ids, min(len(ids), 3))
        request = agent_pb.ReleaseHandlesRequest(handle_ids=chosen)
        await stub.ReleaseHandles(request, timeout=_CALL_SECONDS)
