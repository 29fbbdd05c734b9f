"""Tenants at either door: told apart by key, and their sessions by tenant."""

from __future__ import annotations

import json

import pytest
from tests.support.router_stub import chat, read, router_stub
from tests.support.router_world import SESSION, config_of, router_world

from contraflow.v1 import router_service_pb2 as pb

pytestmark = pytest.mark.integration


async def test_tenants_are_told_apart_by_key() -> None:
    tenants = '[tenants.red]\napi_keys = ["r1", "r2"]\n[tenants.blue]\napi_keys = ["b1"]'
    async with router_world(config_of(tenants)) as world:
        for header in ({}, {"Authorization": "Bearer nope"}, {"Authorization": "Basic r1"}):
            answer = await world.chat(**SESSION, headers=header)
            assert answer.status == 401
            assert json.loads(answer.raw)["error"]["code"] == 401
        seen = {}
        for key in ("r1", "r2", "b1"):
            await world.chat(**SESSION, headers={"Authorization": f"Bearer {key}"})
            body = world.decode.last.body
            seen[key] = (body["session_id"], body["cache_salt"], world.decode.last.ours["tenant"])
        assert seen["r1"] == seen["r2"]
        assert seen["b1"][2] == "blue"
        assert not set(seen["r1"]) & set(seen["b1"])
        async with world.client.get(f"{world.url}/v1/models") as response:
            assert response.status == 401


async def test_a_session_of_another_tenant_is_not_claimed() -> None:
    tenants = '[tenants.red]\napi_keys = ["r1"]\n[tenants.blue]\napi_keys = ["b1"]'
    async with router_world(config_of(tenants)) as world:
        world.know_session(tenant="red")
        answer = await world.chat(**SESSION, headers={"Authorization": "Bearer b1"})
        assert answer.plan["reason"] == "NO_HANDLE"
        answer = await world.chat(**SESSION, headers={"Authorization": "Bearer r1"})
        assert answer.plan["reason"] == "HANDLE_AVAILABLE"


async def test_tenants_are_told_apart_by_the_key_in_the_metadata() -> None:
    tenants = '[tenants.red]\napi_keys = ["red-key"]\n[tenants.blue]\napi_keys = ["blue-key"]'
    async with router_world(config_of(tenants)) as world, router_stub(world) as stub:
        world.know_session(tenant="red")
        for key, reason in (
            ("blue-key", pb.DECISION_REASON_NO_HANDLE),
            ("red-key", pb.DECISION_REASON_HANDLE_AVAILABLE),
        ):
            metadata = (("authorization", f"Bearer {key}"), ("traceparent", "00-1-2-03"))
            events = await read(stub, chat(session_id=SESSION["session_id"]), metadata=metadata)
            assert events[0].plan.reason == reason
            assert world.decode.last.headers["traceparent"] == "00-1-2-03"
            assert key not in repr(world.decode.last.headers)
