"""Turns through a router, fake engines and a fake agent on real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import aiohttp
import msgspec
import pytest
from tests.support.fake_engine import TIP, TOOL_CALL, Received
from tests.support.router_world import (
    HANDLE_PARAMS,
    PROOF,
    SECRET,
    SESSION,
    World,
    config_of,
    router_world,
)
from tests.support.wait import until

from contraflow.core.errors import HandleClaimed, LeaseTooShort
from contraflow.core.instructions import Instructions, Pull
from contraflow.core.session import is_session_key, session_key
from contraflow.runtime.clock import SystemClock
from contraflow.web import ClientLimits

pytestmark = pytest.mark.integration

KEY = session_key(SECRET, "default", SESSION["session_id"])
PULLED = Pull("PULLED", "d1", 299, 299, 192, 107, 41, 131072, 5, 0.01, 0.02)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with router_world() as world:
        yield world


def pull_report(outcome: str) -> Any:
    return lambda received: Pull(outcome, "d1") if "proof" in ours(received) else None


def ours(received: Received) -> dict[str, Any]:
    value: dict[str, Any] = received.params["contraflow"]
    return value


async def test_the_first_turn_computes_and_hands_the_blocks_to_decode(world: World) -> None:
    answer = await world.chat(**SESSION, max_tokens=7, stream=False)

    assert answer.status == 200
    assert answer.plan["decision"] == "RECOMPUTE"
    assert answer.plan["reason"] == "NO_HANDLE"
    assert (answer.plan["prefill"], answer.plan["decode"]) == ("p1", "d1")
    prefill, decode = world.prefill.last, world.decode.last
    assert prefill.body["max_tokens"] == 1
    assert prefill.body["stream"] is False
    instructions = ours(prefill)
    assert prefill.params == {
        "do_remote_decode": True, "do_remote_prefill": False, "contraflow": instructions,
    }  # fmt: skip
    assert is_session_key(instructions["message_digest"])
    assert instructions == {
        "message_digest": instructions["message_digest"],
        "tenant": "default", "session_key": KEY, "turn_id": answer.plan["turn"],
        "decision": "RECOMPUTE", "min_pull_tokens": 64,
    }  # fmt: skip
    assert decode.body["max_tokens"] == 7
    returned = world.prefill.own_params(prefill)
    assert returned is not None
    expected = {key: value for key, value in returned.items() if key != "_private"}
    expected["contraflow"] = {**instructions, "tip": TIP.to_json()}
    assert decode.params == expected
    assert "kv_transfer_params" not in json.loads(answer.raw)


async def test_the_second_turn_pulls_what_the_owner_granted(world: World) -> None:
    world.know_session()
    world.prefill.script.pull = lambda received: PULLED

    answer = await world.chat(**SESSION)

    assert answer.plan["decision"] == "PULL"
    assert answer.plan["reason"] == "HANDLE_AVAILABLE"
    assert answer.plan["outcome"] == "PULLED"
    tokens = [answer.plan[name] for name in ("pulled", "local", "computed", "bytes")]
    assert tokens == ["107", "192", "41", "131072"]
    sent = dict(world.prefill.last.params)
    instructions = Instructions.from_json(sent.pop("contraflow"))
    assert sent == {**HANDLE_PARAMS, "do_remote_decode": True, "do_remote_prefill": False}
    assert instructions.proof == PROOF
    acquired = world.agent.acquired[0]
    assert instructions.claim_id == acquired.claim_id
    assert acquired.session_key == instructions.session_key == KEY
    assert (acquired.tenant, acquired.engine_id) == ("default", "d1")
    assert acquired.hint_handle_id == "d1/chatcmpl-turn-1"
    assert acquired.start_by.seconds == 60
    assert "proof" not in ours(world.decode.last)
    assert ours(world.decode.last)["decision"] == "PULL"
    await world.app.close()
    assert world.agent.returned == []


async def test_scenario_32_a_home_that_the_directory_has_not_heard_of_is_asked(
    world: World,
) -> None:
    assert (await world.chat(**SESSION)).plan["reason"] == "NO_HANDLE"
    assert (await world.chat(**SESSION)).plan["decision"] == "PULL"
    assert world.agent.acquired[0].hint_handle_id == ""


async def test_an_affinity_ends_when_the_directory_brings_the_session(world: World) -> None:
    await world.chat(**SESSION)
    assert world.app.homes.by_key == {KEY: "d1"}
    world.know_session()
    for hook in world.replica._hooks:
        hook(world.replica.sessions[KEY])
    assert world.app.homes.by_key == {}


@pytest.mark.parametrize("error", [HandleClaimed("claimed"), LeaseTooShort("short")])
async def test_a_denial_recomputes(world: World, error: Any) -> None:
    world.know_session()
    world.agent.denial = error

    answer = await world.chat(**SESSION)

    assert answer.status == 200
    assert answer.plan["decision"] == "RECOMPUTE"
    assert answer.plan["reason"] == "ACQUIRE_DENIED"
    assert answer.plan["denial"] == error.reason
    assert "remote_block_ids" not in world.prefill.last.params


async def test_an_agent_that_is_down_costs_no_turn(world: World) -> None:
    world.know_session()
    await world.stop_agent()

    answer = await world.chat(**SESSION)

    assert answer.status == 200
    assert answer.plan["reason"] == "ACQUIRE_TIMEOUT"
    assert answer.plan["denial"] == "UNREACHABLE"


async def test_a_silent_agent_is_left_at_the_deadline_and_its_late_claim_returned() -> None:
    config = msgspec.structs.replace(config_of(), acquire_deadline_seconds=0.05)
    async with router_world(config) as world:
        world.know_session()
        world.agent.hold = asyncio.Event()

        answer = await world.chat(**SESSION)

        assert answer.status == 200
        assert answer.plan["reason"] == "ACQUIRE_TIMEOUT"
        assert answer.plan["denial"] == "TIMEOUT"
        await until(lambda: bool(world.agent.returned), "the claim comes back")
        assert not world.agent.live


@pytest.mark.parametrize("status", [500, 503, 0])
async def test_prefill_that_fails_with_a_handle_is_sent_again_without(
    world: World, status: int
) -> None:
    world.know_session()
    world.prefill.script.statuses = [status]

    answer = await world.chat(**SESSION)

    assert answer.status == 200
    assert answer.plan["retried"] == "PREFILL_WITHOUT_HANDLE"
    first, second = world.prefill.received
    assert first.params["remote_request_id"] == "chatcmpl-turn-1"
    assert set(second.params) == {"do_remote_decode", "do_remote_prefill", "contraflow"}
    assert "claim_id" not in ours(second)
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    await world.app.close()
    assert world.agent.returned == []  # nobody can prove that it was not read


async def test_prefill_on_a_connection_that_died_idle_is_sent_again(world: World) -> None:
    await world.chat()
    world.prefill.script.statuses = [0]
    answer = await world.chat()
    assert (answer.status, answer.plan["retried"]) == (200, "PREFILL_RESENT")
    world.prefill.script.statuses = [0, 0]
    assert (await world.chat()).status == 502


async def test_prefill_that_fails_without_a_handle_is_not_sent_again(world: World) -> None:
    world.prefill.script.statuses = [500]
    answer = await world.chat(**SESSION)
    assert answer.status == 500
    assert json.loads(answer.raw)["error"]["message"] == "engine says 500"
    assert len(world.prefill.received) == 1
    assert not world.decode.received


@pytest.mark.parametrize("status", [400, 404, 422])
async def test_an_engines_refusal_is_the_clients_answer(world: World, status: int) -> None:
    world.know_session()
    world.prefill.script.statuses = [status]

    answer = await world.chat(**SESSION)

    assert answer.status == status
    assert json.loads(answer.raw)["error"]["type"] == "EngineError"
    assert answer.plan["decision"] == "PULL"
    assert len(world.prefill.received) == 1
    assert not world.decode.received


async def test_a_refusal_by_decode_is_the_clients_answer(world: World) -> None:
    world.decode.script.statuses = [400]
    answer = await world.chat(**SESSION)
    assert answer.status == 400
    assert json.loads(answer.raw)["error"]["message"] == "engine says 400"
    assert world.app.homes.by_key == {}


@pytest.mark.parametrize("outcome", ["DECLINED_MISMATCH", "DECLINED_SMALL", "DECLINED_NO_PROOF"])
async def test_a_declined_claim_is_returned(world: World, outcome: str) -> None:
    world.know_session()
    world.prefill.script.pull = pull_report(outcome)

    answer = await world.chat(**SESSION)

    assert answer.plan["outcome"] == outcome
    await until(lambda: not world.agent.live, "the claim comes back")
    assert world.agent.returned == [world.agent.acquired[0].claim_id]


async def test_a_failed_pull_is_not_returned(world: World) -> None:
    world.know_session()
    world.prefill.script.pull = pull_report("FAILED")
    assert (await world.chat(**SESSION)).plan["outcome"] == "FAILED"
    await world.app.close()
    assert world.agent.returned == []


async def test_a_claim_is_returned_if_prefill_can_not_be_reached(world: World) -> None:
    world.know_session()
    await world.prefill.stop()

    answer = await world.chat(**SESSION)

    assert answer.status == 502
    assert answer.plan["decision"] == "PULL"
    await until(lambda: not world.agent.live, "the claim comes back")


async def test_parameters_that_can_not_be_used_leave_decode_alone(world: World) -> None:
    world.prefill.script.params = lambda received: None
    answer = await world.chat(**SESSION)
    assert answer.status == 200
    sent = dict(world.decode.last.params)
    sent.pop("contraflow")
    assert sent == {"do_remote_decode": False, "do_remote_prefill": False}


# Clients that leave.


async def test_a_client_that_leaves_during_acquire(world: World) -> None:
    world.know_session()
    world.agent.hold = asyncio.Event()
    task = asyncio.create_task(world.chat(**SESSION))
    await until(lambda: bool(world.agent.live), "the claim is made")

    task.cancel()

    await until(lambda: not world.agent.live, "the claim comes back")
    assert not world.prefill.received


async def test_a_client_that_leaves_before_prefill_is_sent() -> None:
    # The only connection to the engine is taken by another turn, so the second one waits for it.
    limits = ClientLimits(max_connections=1)
    async with router_world(msgspec.structs.replace(config_of(), engines=limits)) as world:
        world.know_session()
        never = asyncio.Event()

        async def hold(received: Received) -> None:
            await never.wait()

        world.prefill.script.before_answer = hold
        first = asyncio.create_task(world.chat())
        await until(lambda: bool(world.prefill.received), "the connection is taken")
        second = asyncio.create_task(world.chat(**SESSION))
        await until(lambda: bool(world.agent.live), "the claim is made")

        second.cancel()

        await until(lambda: not world.agent.live, "the claim comes back")
        assert len(world.prefill.received) == 1
        first.cancel()


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_a_client_that_leaves_ends_the_leg_that_runs(world: World, leg: str) -> None:
    world.know_session()
    engine = world.prefill if leg == "prefill" else world.decode
    never = asyncio.Event()

    async def hold(received: Received) -> None:
        await never.wait()

    engine.script.before_answer = hold
    task = asyncio.create_task(world.chat(**SESSION))
    await until(lambda: bool(engine.received), f"{leg} runs")

    task.cancel()

    await until(lambda: engine.last.disconnected, f"{leg} is aborted")
    assert bool(world.decode.received) is (leg == "decode")
    await world.app.close()
    assert world.agent.returned == []  # bytes were sent: it ends by itself
    assert world.app.homes.by_key == {}


async def test_a_client_that_leaves_in_mid_stream(world: World) -> None:
    never = asyncio.Event()

    async def hold(received: Received) -> None:
        await never.wait()

    world.decode.script.between_chunks = hold
    body = {"model": "tiny", "messages": [], "stream": True, **SESSION}
    async with world.client.post(f"{world.url}/v1/chat/completions", json=body) as response:
        assert (await response.content.readline()).startswith(b"data: ")
        response.close()
    await until(lambda: world.decode.last.disconnected, "decode is aborted")
    assert world.app.homes.by_key == {}


async def test_scenario_12_a_client_that_leaves_at_the_last_event_has_had_its_turn(
    world: World,
) -> None:
    never = asyncio.Event()

    async def hold(received: Received) -> None:
        await never.wait()

    world.decode.script.before_end = hold
    body = {"model": "tiny", "messages": [], "stream": True, **SESSION}
    async with world.client.post(f"{world.url}/v1/chat/completions", json=body) as response:
        raw = await response.read()  # the engine's own end is not waited for
    assert raw.endswith(b"data: [DONE]\n\n")
    never.set()
    await until(lambda: world.app.homes.by_key == {KEY: "d1"}, "the home is remembered")


async def test_a_stream_that_breaks_is_seen_as_broken(world: World) -> None:
    async def cut(received: Received) -> None:
        raise ConnectionError("cut")

    world.decode.script.between_chunks = cut
    with pytest.raises(aiohttp.ClientPayloadError):
        await world.chat(**SESSION, stream=True)
    assert world.app.homes.by_key == {}


# What passes through.


@pytest.mark.parametrize("vllm", ["0.32", "0.33"])
async def test_scenario_12_a_stream_passes_byte_for_byte_without_parameters(
    world: World, vllm: str
) -> None:
    world.decode.script.vllm = world.prefill.script.vllm = vllm
    answer = await world.chat(**SESSION, stream=True, stream_options={"include_usage": True})

    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert b"kv_transfer_params" not in answer.raw
    sent = world.decode.stream_chunks(None)
    got = answer.raw.split(b"\n\n")[:-1]
    assert len(got) == len(sent)
    for index in (0, 1, 2, 4, 5):
        assert got[index] + b"\n\n" == sent[index]
    last = json.loads(sent[3].removeprefix(b"data: "))
    last.pop("kv_transfer_params", None)
    assert json.loads(got[3].removeprefix(b"data: ")) == last
    assert "stream_options" not in world.prefill.last.body
    assert world.decode.last.body["stream_options"] == {"include_usage": True}


async def test_scenario_27_tool_calls_and_null_content_pass(world: World) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]}
    world.decode.script.message = message
    history = [
        {"role": "user", "content": "hi"},
        message,
        {"role": "tool", "tool_call_id": "call_1", "content": "42"},
    ]
    tools = [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]

    answer = await world.chat(**SESSION, messages=history, tools=tools, tool_choice="auto")

    for received in (world.prefill.last, world.decode.last):
        assert received.body["messages"] == history
        assert received.body["tools"] == tools
        assert json.dumps(TOOL_CALL).encode() in received.raw
    assert json.dumps(message).encode() in answer.raw


async def test_completions_with_token_ids_take_both_legs(world: World) -> None:
    answer = await world.chat(path="/v1/completions", prompt=[1, 2, 3], **SESSION)
    assert answer.status == 200
    assert world.prefill.last.path == world.decode.last.path == "/v1/completions"
    assert world.prefill.last.body["prompt"] == [1, 2, 3]


@pytest.mark.parametrize(
    "fields",
    [{"n": 2}, {"best_of": 2}, {"use_beam_search": True}, {"prompt_logprobs": 1},
     {"prompt": ["a", "b"]}, {"prompt": [[1], [2]]}, {"echo": True, "logprobs": 1}],
)  # fmt: skip
async def test_scenario_21_odd_requests_go_to_decode_alone(world: World, fields: Any) -> None:
    world.know_session()
    answer = await world.chat(**SESSION, **fields)
    assert answer.status == 200
    assert answer.plan["reason"] == "UNSUPPORTED_REQUEST"
    assert not world.prefill.received
    assert not world.agent.acquired
    assert "kv_transfer_params" not in world.decode.last.body
    assert world.app.homes.by_key == {}


async def test_scenario_21_an_echo_is_prefilled_without_a_claim(world: World) -> None:
    world.know_session()
    answer = await world.chat(**SESSION, echo=True)
    assert answer.plan["reason"] == "UNSUPPORTED_REQUEST"
    assert world.prefill.received
    assert not world.agent.acquired
    assert not ours(world.decode.last).get("session_key")  # so that no handle is kept
    assert world.app.homes.by_key == {}


# What engines get to see.


async def test_engines_see_neither_session_ids_nor_the_clients_parameters(world: World) -> None:
    evil = {"remote_host": "10.6.6.6", "do_remote_prefill": True}
    secret_names = {"session_id": "s-secret", "conversation_id": "c-secret",
                    "prompt_cache_key": "p-secret", "cache_salt": "salt-secret"}  # fmt: skip
    xargs = {"session_id": "x-secret", "kv_transfer_params": "boom", "kept": 1}
    headers = {"X-Session-ID": "h-secret", "Authorization": "Bearer t-secret",
               "X-data-parallel-rank": "7", "X-Request-ID": "mine",
               "traceparent": "00-1-2-03"}  # fmt: skip
    answer = await world.chat(
        kv_transfer_params=evil, vllm_xargs=xargs, headers=headers, **secret_names
    )

    assert answer.headers["x-request-id"] == "mine"
    for received in (world.prefill.last, world.decode.last):
        seen = received.raw + repr(received.headers).encode()
        assert b"secret" not in seen
        assert b"10.6.6.6" not in seen
        assert received.body["session_id"] == session_key(SECRET, "default", "s-secret")
        assert len(received.body["cache_salt"]) == 32
        assert received.body["vllm_xargs"] == {"kept": 1}
        assert received.headers["x-data-parallel-rank"] == "0"
        assert received.headers["x-request-id"] == answer.plan["turn"]
        assert received.headers["traceparent"] == "00-1-2-03"
    assert world.prefill.last.body["cache_salt"] == world.decode.last.body["cache_salt"]


async def test_engines_get_the_engine_key_and_the_rank() -> None:
    async with router_world(config_of('engine_api_key = "e-key"')) as world:
        world.know(replace(world.decode.engine, dp_rank=3))
        await world.chat()
        assert world.prefill.last.headers["authorization"] == "Bearer e-key"
        assert world.decode.last.headers["x-data-parallel-rank"] == "3"


# Tenants.


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
            seen[key] = (body["session_id"], body["cache_salt"], ours(world.decode.last)["tenant"])
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


# Plans that do not pull.


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tokens": 10}, "BELOW_THRESHOLD"),
        ({"expires_at": SystemClock().now() - 1}, "NO_HANDLE"),
        ({"engine_id": "gone"}, "NO_HANDLE"),
    ],
)
async def test_sessions_not_worth_a_pull(world: World, fields: Any, reason: str) -> None:
    world.know_session(**fields)
    answer = await world.chat(**SESSION)
    assert answer.plan["reason"] == reason
    assert not world.agent.acquired


async def test_no_session_no_pull(world: World) -> None:
    answer = await world.chat(path="/v1/completions", prompt="hi")
    assert answer.plan["reason"] == "NO_SESSION"
    assert "session_id" not in world.decode.last.body
