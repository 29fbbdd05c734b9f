"""The front door beside turns: bad input, models, health, metrics, RouterService."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.support.router_world import SESSION, World

from contraflow.core.errors import InvalidArgument, NoEligibleEngine
from contraflow.v1 import router_service_pb2 as pb

pytestmark = pytest.mark.integration
CHAT = "/v1/chat/completions"


async def call(world: World, method: str, path: str, **kwargs: Any) -> tuple[int, Any, Any]:
    async with world.client.request(method, world.url + path, **kwargs) as response:
        return response.status, response.headers, await response.read()


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"text"', b"null", b'{"model": "tiny",}', b'{"a": "\xff"}', b"\xff\xfe{}",
     b"[" * 100_000],
)  # fmt: skip
async def test_bodies_that_are_no_json_object(world: World, body: bytes) -> None:
    status, _, raw = await call(world, "POST", CHAT, data=body)
    error = json.loads(raw)["error"]
    assert (status, error["code"]) == (400, 400)
    assert error["message"]
    assert not world.prefill.received


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"model": 7}, "model"), ({"session_id": 7}, "session_id"),
     ({"conversation_id": []}, "conversation_id"), ({"prompt_cache_key": {}}, "prompt_cache_key"),
     ({"cache_salt": True}, "cache_salt"), ({"cache_salt": ""}, "cache_salt")],
)  # fmt: skip
async def test_fields_of_a_wrong_type(world: World, fields: Any, param: str) -> None:
    answer = await world.chat(**fields)
    error = json.loads(answer.raw)["error"]
    assert (answer.status, error["param"]) == (400, param)
    assert not world.prefill.received


async def test_an_unknown_model(world: World) -> None:
    answer = await world.chat(model="none")
    assert answer.status == 404
    assert json.loads(answer.raw)["error"] == {
        "message": "The model `none` does not exist.",
        "type": "NotFoundError", "param": "model", "code": 404,
    }  # fmt: skip


async def test_unknown_routes_and_wrong_methods(world: World) -> None:
    status, _, raw = await call(world, "GET", "/v2/nothing")
    assert (status, json.loads(raw)["error"]["code"]) == (404, 404)
    status, headers, raw = await call(world, "GET", CHAT)
    assert (status, json.loads(raw)["error"]["code"]) == (405, 405)
    assert headers["allow"] == "POST"


async def test_a_request_without_model_takes_the_first_one(world: World) -> None:
    answer = await world.chat(model=None)
    assert answer.status == 200


async def test_models(world: World) -> None:
    status, _, raw = await call(world, "GET", "/v1/models")
    listed = json.loads(raw)
    assert (status, listed["object"]) == (200, "list")
    assert [(model["id"], model["object"]) for model in listed["data"]] == [("tiny", "model")]


@pytest.mark.parametrize(
    ("gone", "missing"), [(("d1",), ["decode"]), (("p1", "d1"), ["prefill", "decode"])]
)
async def test_no_decode_engine_is_the_one_error(
    world: World, gone: Any, missing: list[str]
) -> None:
    assert (await call(world, "GET", "/health"))[0] == 200
    for engine_id in gone:
        del world.replica.engines[engine_id]

    status, _, raw = await call(world, "GET", "/health")
    assert (status, json.loads(raw)["missing"]) == (503, missing)
    answer = await world.chat(**SESSION)
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"


async def test_without_a_prefill_engine_it_serves_and_says_what_is_missing(world: World) -> None:
    del world.replica.engines["p1"]
    status, _, raw = await call(world, "GET", "/health")
    state = json.loads(raw)
    assert (status, state["status"], state["missing"]) == (200, "ok", ["prefill"])
    answer = await world.chat(**SESSION)
    assert (answer.status, answer.plan["decision"]) == (200, "DECODE_ONLY")


async def test_a_draining_engine_takes_no_turns(world: World) -> None:
    world.know(replace(world.decode.engine, draining=True))
    assert (await world.chat()).status == 503
    assert (await call(world, "GET", "/health"))[0] == 503


async def test_metrics_tell_of_turns(world: World) -> None:
    await world.chat(**SESSION)
    await world.chat(**SESSION)
    await world.chat(model="none")
    _, _, raw = await call(world, "GET", "/metrics")
    lines = raw.decode().splitlines()
    turn = 'contraflow_router_turns_total{{decision="{}",denial="",reason="{}",status="200"}} 1.0'
    assert turn.format("RECOMPUTE", "NO_HANDLE") in lines
    assert turn.format("PULL", "HANDLE_AVAILABLE") in lines
    assert 'contraflow_router_stage_seconds_count{stage="ttft"} 2.0' in lines
    assert 'contraflow_router_errors_total{kind="NotFoundError"} 1.0' in lines
    assert "contraflow_router_turns_in_flight 0.0" in lines
    assert "contraflow_router_view_engines 2.0" in lines


async def test_plan_turn_says_what_would_be_done(world: World) -> None:
    world.know_session()
    ask = world.app.servicer.PlanTurn
    request = pb.PlanTurnRequest(tenant="default", session_id="conversation-1", model="tiny")
    plan = await ask(request, None)  # type: ignore[arg-type]
    assert plan.decision == pb.DECISION_PULL
    assert plan.reason == pb.DECISION_REASON_HANDLE_AVAILABLE
    assert (plan.prefill_engine_id, plan.decode_engine_id) == ("p1", "d1")
    assert (plan.handle_id, plan.handle_tokens) == ("d1/chatcmpl-turn-1", 299)
    assert {candidate.engine_id for candidate in plan.candidates} == {"p1", "d1"}
    assert not world.agent.acquired
    with pytest.raises(InvalidArgument):
        await ask(pb.PlanTurnRequest(), None)  # type: ignore[arg-type]
    with pytest.raises(NoEligibleEngine):
        await ask(pb.PlanTurnRequest(tenant="t", model="none"), None)  # type: ignore[arg-type]


async def test_the_view_can_be_asked_for(world: World) -> None:
    view = await world.app.servicer.ListViewEngines(
        pb.ListViewEnginesRequest(), None  # type: ignore[arg-type]
    )  # fmt: skip
    assert [engine.engine_id for engine in view.engines] == ["d1", "p1"]
    assert view.revision == 1
    assert view.age.nanos > 0
