"""What a tenant might try to get at another one's KV blocks, through every door it has."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from tests.support.fake_engine import Received
from tests.support.owner import Owner, owned_world
from tests.support.router_stub import chat, failure, read, router_stub
from tests.support.router_world import SECRET, SESSION, Answer, World, config_of

from contraflow.core.errors import Reason
from contraflow.core.handle import State
from contraflow.core.session import cache_salt, session_key
from contraflow.runtime.grpc_errors import from_rpc_error
from contraflow.v1 import agent_service_pb2, agent_service_pb2_grpc
from contraflow.v1 import router_service_pb2 as pb

pytestmark = pytest.mark.integration

Json = dict[str, Any]
TENANTS = config_of('[tenants.red]\napi_keys = ["r"]\n[tenants.blue]\napi_keys = ["b"]\n')
RED = {"authorization": "Bearer r"}
BLUE = {"authorization": "Bearer b"}
ID = SESSION["session_id"]
RED_KEY = session_key(SECRET, "red", ID)
BLUE_KEY = session_key(SECRET, "blue", ID)
HI: Json = {"role": "user", "content": "hi"}
YES: Json = {"role": "assistant", "content": "to be"}
MORE: Json = {"role": "user", "content": "go on"}
FORGED: Json = {
    "do_remote_prefill": True,
    "do_remote_decode": True,
    "remote_host": "10.6.6.6",
    "remote_port": 5602,
    "remote_engine_id": "d1",
    "remote_request_id": "forged-request",
    "remote_block_ids": [[7, 8, 9]],
    "remote_num_tokens": 299,
    "contraflow": {
        "tenant": "red", "session_key": RED_KEY, "claim_id": "forged-claim",
        "turn_id": "forged-turn", "decision": "PULL", "min_pull_tokens": 1,
    },
}  # fmt: skip


@asynccontextmanager
async def red_has_a_handle() -> AsyncIterator[tuple[World, Owner, str]]:
    """Of SESSION and of its messages; every router knows."""
    async with owned_world(TENANTS) as (world, owner):
        answer = await world.chat(messages=[HI], headers=RED, **SESSION)
        await world.chat(messages=[HI], headers=RED)
        owner.publish(world.replica)
        assert RED_KEY in world.replica.sessions
        yield world, owner, answer.plan["turn"]


def assert_blue(*legs: Received) -> None:
    """Engines were told of nobody but blue, and of no blocks but the prefill engine's."""
    for received in legs:
        told = received.params["contraflow"]
        assert told["tenant"] == "blue"
        assert told["session_key"] == received.body["session_id"] != RED_KEY
        assert told["turn_id"] != "forged-turn"
        assert "claim_id" not in told
        assert "proof" not in told
        assert received.params.get("remote_engine_id") in (None, "p1")
        text = received.raw + repr(received.headers).encode()
        for forged in (b"forged", b"10.6.6.6", RED_KEY.encode()):
            assert forged not in text


async def assert_untouched(world: World, owner: Owner, turn: str, asked: int = 0) -> None:
    await world.app.close()
    assert owner.handles()[turn] is State.RETAINED
    assert owner.reads == owner.released == []
    assert len(owner.acquired) == asked


async def as_blue(world: World, **fields: Any) -> Answer:
    headers = {**BLUE, **fields.pop("headers", {})}
    answer = await world.chat(headers=headers, **fields)
    assert answer.status == 200
    return answer


@pytest.mark.parametrize(
    "fields",
    [
        {"session_id": ID},
        {"conversation_id": ID},
        {"prompt_cache_key": ID},
        {"headers": {"X-Session-ID": ID}},
        {"session_id": RED_KEY},
        {"headers": {"x-session-id": RED_KEY}},
        {"session_id": f"red{ID}"},
        {"session_id": f"red\0{ID}"},
        {},
    ],
)
async def test_scenario_10_a_stolen_session_id_finds_nothing(fields: Json) -> None:
    async with red_has_a_handle() as (world, owner, turn):
        answer = await as_blue(world, messages=[HI, YES, MORE], **fields)
        assert (answer.plan["decision"], answer.plan["reason"]) == ("RECOMPUTE", "NO_HANDLE")
        assert_blue(world.prefill.last, world.decode.last)
        await assert_untouched(world, owner, turn)


@pytest.mark.parametrize(
    "fields",
    [
        {"tenant": "red"},
        {"user": "red"},
        {"metadata": {"tenant": "red"}},
        {"contraflow": FORGED["contraflow"]},
        {"headers": {"X-Tenant": "red", "X-Contraflow": "tenant=red; turn=t; decision=PULL"}},
        {"headers": {"X-Contraflow-Tenant": "red", "Contraflow-Claim-Id": "c"}},
    ],
)
async def test_a_tenant_in_the_request_is_no_credential(fields: Json) -> None:
    async with red_has_a_handle() as (world, owner, turn):
        answer = await as_blue(world, messages=[HI, YES, MORE], **SESSION, **fields)
        assert answer.plan["reason"] == "NO_HANDLE"
        for received in (world.prefill.last, world.decode.last):
            assert received.params["contraflow"]["tenant"] == "blue"
            assert received.params["contraflow"]["session_key"] == BLUE_KEY
            assert not any("contraflow" in name or "tenant" in name for name in received.headers)
        await assert_untouched(world, owner, turn)


@pytest.mark.parametrize("odd", [{}, {"n": 2}, {"prompt_logprobs": 1}])
@pytest.mark.parametrize(
    "body",
    [
        {"kv_transfer_params": FORGED},
        {"vllm_xargs": {"kv_transfer_params": FORGED, "kept": 1}},
        {"vllm_xargs": {"session_id": RED_KEY, "kv_transfer_params": json.dumps(FORGED)}},
        {"ec_transfer_params": FORGED, "vllm_xargs": {"ec_transfer_params": FORGED}},
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_scenario_26_forged_transfer_parameters_reach_no_engine(
    body: Json, odd: Json, path: str
) -> None:
    async with red_has_a_handle() as (world, owner, turn):
        if odd:
            world.decode.script.before_answer = None  # there is nothing to retain
        await as_blue(world, path=path, messages=[HI, YES, MORE], **SESSION, **body, **odd)
        legs = [world.decode.last] if odd else [world.prefill.last, world.decode.last]
        for received in legs:
            assert b"forged" not in received.raw
            assert b"10.6.6.6" not in received.raw
            assert RED_KEY.encode() not in received.raw
        if odd:
            assert "kv_transfer_params" not in world.decode.last.body
        else:
            assert_blue(*legs)
        await assert_untouched(world, owner, turn)


@pytest.mark.parametrize(
    "text",
    [
        '"kv\\u005ftransfer_params": %s',
        '"kv_transfer_params": 1, "kv_transfer_params": %s',
        '"kv_transfer_params": %s, "kv_transfer_params": null',
        '"vllm_xargs": {"kv\\u005ftransfer_params": %s}',
        '"vllm\\u005fxargs": {"a": 1, "kv_transfer_params": 1, "kv_transfer_params": %s}',
        '"vllm_xargs": {}, "vllm_xargs": {"kv_transfer_params": %s}',
        '"vllm_xargs": {"kv_transfer_params": %s}, "vllm_xargs": null',
    ],
)
async def test_scenario_26_nor_do_they_in_disguise(text: str) -> None:
    async with red_has_a_handle() as (world, owner, turn):
        forged = text.replace("%s", json.dumps(FORGED))
        data = '{"model": "tiny", "messages": [{"role": "user", "content": "x"}], ' + forged + "}"
        url = f"{world.url}/v1/chat/completions"
        headers = {**BLUE, "content-type": "application/json"}
        async with world.client.post(url, data=data, headers=headers) as response:
            assert response.status == 200
        assert_blue(world.prefill.last, world.decode.last)
        await assert_untouched(world, owner, turn)


async def test_a_salt_that_is_guessed_or_stolen_opens_no_cache() -> None:
    async with owned_world(TENANTS) as (world, _):
        salts = {}
        stolen = cache_salt(SECRET, "red")
        tries: list[tuple[Json, Json]] = [(RED, {}), (BLUE, {})]
        tries += [(BLUE, {"cache_salt": one}) for one in (stolen, "red", "mine")]
        tries += [(RED, {"cache_salt": "mine"})]
        for number, (headers, fields) in enumerate(tries):
            await world.chat(headers=headers, **fields)
            legs = [engine.last.body["cache_salt"] for engine in (world.prefill, world.decode)]
            assert legs[0] == legs[1]
            salts[number] = legs[0]
        assert salts[0] == stolen  # what red's engines use
        assert len(set(salts.values())) == len(tries)


async def test_a_forged_tenant_is_denied_by_the_owner_too() -> None:
    async with (
        red_has_a_handle() as (world, owner, turn),
        grpc.aio.insecure_channel(world.agent_address) as channel,
    ):
        agent = agent_service_pb2_grpc.AgentServiceStub(channel)

        async def acquire(claim_id: str, tenant: str, key: str) -> str:
            request = agent_service_pb2.AcquireHandleRequest(
                claim_id=claim_id, tenant=tenant, session_key=key, engine_id="d1"
            )
            return (await agent.AcquireHandle(request, timeout=30)).handle.handle_id

        async def denial(claim_id: str, tenant: str, key: str) -> Reason:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await acquire(claim_id, tenant, key)
            return from_rpc_error(caught.value).reason

        assert await denial("c-0", "blue", RED_KEY) is Reason.TENANT_MISMATCH
        assert await acquire("c-1", "red", RED_KEY) == f"d1/{turn}"
        # A claim id that was overheard is worth nothing to another tenant or session.
        assert await denial("c-1", "blue", RED_KEY) is Reason.TENANT_MISMATCH
        assert await denial("c-1", "red", BLUE_KEY) is Reason.TENANT_MISMATCH
        # Nor to its own once it has been read.
        owner.read("c-1")
        assert await denial("c-1", "red", RED_KEY) is Reason.HANDLE_CLAIMED


# gRPC.


@pytest.mark.parametrize(
    "fields",
    [
        {"session_id": ID},
        {"session_id": RED_KEY},
        {"extra_json": json.dumps({"kv_transfer_params": FORGED, "session_id": ID})},
        {"extra_json": json.dumps({"vllm_xargs": {"kv_transfer_params": FORGED}, "tenant": "red"})},
    ],
)
@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("x-session-id", ID), ("tenant", "red"), ("x-contraflow", "tenant=red")),
        (("authorization", "Bearer r"),),
        (("authorization-bin", b"Bearer r"), ("x-api-key", "r")),
    ],
)
async def test_generate_knows_its_caller_by_the_first_credentials_only(
    fields: Json, metadata: tuple[tuple[str, str], ...]
) -> None:
    async with red_has_a_handle() as (world, owner, turn), router_stub(world) as stub:
        await read(stub, chat(**fields), metadata=(("authorization", "Bearer b"), *metadata))
        assert_blue(world.prefill.last, world.decode.last)
        await assert_untouched(world, owner, turn)


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("x-api-key", "r"),),
        (("authorization-bin", b"Bearer r"),),
        (("authorization", "r"),),
        (("authorization", "Basic r"),),
        (("authorization", "Bearer r b"),),
        (("authorization", "Bearer "),),
        (("tenant", "red"),),
    ],
)
async def test_generate_takes_nothing_else_for_credentials(
    metadata: tuple[tuple[str, str], ...],
) -> None:
    async with red_has_a_handle() as (world, owner, turn), router_stub(world) as stub:
        code, error, events = await failure(stub, chat(session_id=ID), metadata=metadata)
        assert (code, error.reason) == (grpc.StatusCode.UNAUTHENTICATED, Reason.UNAUTHENTICATED)
        assert events == []
        await assert_untouched(world, owner, turn)


async def test_a_plan_tells_nothing_of_another_tenants_sessions() -> None:
    async with red_has_a_handle() as (world, _, turn), router_stub(world) as stub:

        async def plan(key: str, **fields: Any) -> pb.PlanTurnResponse:
            metadata = (("authorization", f"Bearer {key}"),) if key else ()
            request = pb.PlanTurnRequest(session_id=ID, **fields)
            return await stub.PlanTurn(request, timeout=30, metadata=metadata)

        for key, tenant, reason in (
            ("", "red", Reason.UNAUTHENTICATED),
            ("x", "red", Reason.UNAUTHENTICATED),
            ("b", "red", Reason.TENANT_MISMATCH),
            ("b", "default", Reason.TENANT_MISMATCH),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await plan(key, tenant=tenant)
            assert from_rpc_error(caught.value).reason is reason
        own = await plan("b")
        assert (own.session_key, own.handle_id) == (BLUE_KEY, "")
        red = await plan("r", tenant="red")
        assert (red.session_key, red.handle_id) == (RED_KEY, f"d1/{turn}")


async def test_the_right_tenant_pulls_what_the_others_could_not() -> None:
    async with red_has_a_handle() as (world, owner, turn):
        answer = await world.chat(messages=[HI, YES, MORE], headers=RED, **SESSION)
        assert answer.plan["decision"] == "PULL"
        assert owner.reads == [turn]
