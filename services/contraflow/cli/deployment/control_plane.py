"""Asks the services of a deployment over gRPC, as any operator could."""

from __future__ import annotations

from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from contraflow.v1 import (
    agent_service_pb2,
    agent_service_pb2_grpc,
    router_service_pb2,
    router_service_pb2_grpc,
)

_TIMEOUT_SECONDS = 5.0


def _channel(target: str) -> grpc.aio.Channel:
    # Without a proxy: everything is on loopback.
    return grpc.aio.insecure_channel(target, options=[("grpc.enable_http_proxy", 0)])


async def is_serving(target: str) -> bool:
    """True if the server at ``target`` says that it is healthy."""
    async with _channel(target) as channel:
        try:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_SECONDS)
        except grpc.aio.AioRpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def attached_engines(agent: str) -> list[agent_service_pb2.AttachedEngine]:
    """Engines with a live link to the agent; none if it does not answer."""
    async with _channel(agent) as channel:
        try:
            answer = await agent_service_pb2_grpc.AgentServiceStub(channel).ListAttachedEngines(
                agent_service_pb2.ListAttachedEnginesRequest(), timeout=_TIMEOUT_SECONDS
            )
        except grpc.aio.AioRpcError:
            return []
    return list(answer.engines)


async def engines_in_view(router: str) -> list[str]:
    """Ids of the engines that a router knows; none if it does not answer."""
    async with _channel(router) as channel:
        try:
            answer = await router_service_pb2_grpc.RouterServiceStub(channel).ListViewEngines(
                router_service_pb2.ListViewEnginesRequest(), timeout=_TIMEOUT_SECONDS
            )
        except grpc.aio.AioRpcError:
            return []
    return [engine.engine_id for engine in answer.engines]


async def plan_turn(
    router: str, tenant: str, session_id: str, model: str
) -> router_service_pb2.PlanTurnResponse:
    """What a router would do with the next turn. Raises grpc.aio.AioRpcError."""
    async with _channel(router) as channel:
        return await router_service_pb2_grpc.RouterServiceStub(channel).PlanTurn(
            router_service_pb2.PlanTurnRequest(tenant=tenant, session_id=session_id, model=model),
            timeout=_TIMEOUT_SECONDS,
        )
