"""The Messages API at the front door: both legs, keys, and errors as its clients expect them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.support.fake_engine import MESSAGES_STREAM, Received
from tests.support.router_world import (
    HANDLE_PARAMS,
    KEY,
    SESSION,
    Answer,
    World,
    config_of,
    router_world,
)
from tests.support.wait import until

pytestmark = pytest.mark.integration

PATH = "/v1/messages"


async def ask(world: World, **fields: Any) -> Answer:
    return await world.chat(path=PATH, **{"max_tokens": 7, **SESSION, **fields})


def error_of(answer: Answer) -> tuple[str, str]:
    body = json.loads(answer.raw)
    assert set(body) == {"type", "error"}
    assert body["type"] == "error"
    return body["error"]["type"], body["error"]["message"]


async def test_both_legs_go_to_the_path_that_the_client_chose(world: World) -> None:
    answer = await ask(world, system="Be brief.", thinking={"type": "adaptive"})

    assert answer.status == 200
    body = json.loads(answer.raw)
    assert body["content"] == [{"type": "text", "text": "to be"}]
    assert "kv_transfer_params" not in body
    prefill, decode = world.prefill.last, world.decode.last
    assert prefill.path == decode.path == PATH
    assert (prefill.body["max_tokens"], prefill.body["stream"]) == (1, False)
    assert (decode.body["max_tokens"], decode.params["remote_engine_id"]) == (7, "p1")
    for received in (prefill, decode):
        assert received.body["system"] == "Be brief."
        assert received.body["thinking"] == {"type": "adaptive"}
        assert received.headers["x-session-id"] == KEY
        assert received.params["contraflow"]["session_key"] == KEY
    assert prefill.body["cache_salt"] == decode.body["cache_salt"]


async def test_the_second_turn_pulls(world: World) -> None:
    world.know_session()
    answer = await ask(world)
    assert answer.plan["decision"] == "PULL"
    sent = world.prefill.last.params
    assert sent["remote_request_id"] == HANDLE_PARAMS["remote_request_id"]


async def test_a_stream_passes_byte_for_byte(world: World) -> None:
    answer = await ask(world, stream=True)
    assert answer.raw == b"".join(MESSAGES_STREAM)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "stream_options" not in world.decode.last.body
    await until(lambda: world.app.homes.by_key == {KEY: "d1"}, "the home is remembered")


async def test_the_stream_ends_at_its_last_event(world: World) -> None:
    never = asyncio.Event()

    async def hold(received: Received) -> None:
        await never.wait()

    world.decode.script.before_end = hold
    answer = await ask(world, stream=True)  # the engine's own end is not waited for
    assert answer.raw.endswith(b'data: {"type":"message_stop"}\n\n')
    never.set()


async def test_a_forced_tool_use_goes_to_decode_alone(world: World) -> None:
    tools = [{"name": "look_up", "input_schema": {"type": "object"}}]
    forced = {"type": "tool", "name": "look_up"}
    assert (await ask(world, tools=tools, tool_choice=forced)).status == 200
    assert not world.prefill.received
    assert world.decode.last.body["tool_choice"] == forced
    assert (await ask(world, tools=tools, tool_choice={"type": "any"})).status == 200
    assert world.prefill.received


async def test_the_key_is_taken_from_either_header() -> None:
    config = config_of('[tenants.red]\napi_keys = ["red-key"]')
    async with router_world(config) as world:
        for headers in ({"X-Api-Key": "red-key"}, {"Authorization": "Bearer red-key"}):
            assert (await ask(world, headers=headers)).status == 200
            assert "red-key" not in repr(world.decode.last.headers)
        for headers in ({}, {"X-Api-Key": "nope"}):
            answer = await ask(world, headers=headers)
            assert answer.status == 401
            assert error_of(answer)[0] == "authentication_error"
        both = {"X-Api-Key": "red-key", "Authorization": "Bearer nope"}
        assert (await ask(world, headers=both)).status == 401
        assert (await world.chat(headers={"X-Api-Key": "red-key"})).status == 401


async def test_the_routers_errors_have_the_shape_of_the_api(world: World) -> None:
    answer = await ask(world, model="none")
    assert answer.status == 404
    assert error_of(answer) == ("not_found_error", "The model `none` does not exist.")
    answer = await ask(world, session_id=7)
    assert answer.status == 400
    assert error_of(answer) == ("invalid_request_error", "`session_id` must be a string.")
    async with world.client.get(world.url + PATH) as response:
        answer = Answer(response.status, response.headers, await response.read())
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert error_of(answer)[0] == "invalid_request_error"
    await world.decode.stop()
    answer = await ask(world)
    assert answer.status == 502
    assert error_of(answer)[0] == "api_error"
    del world.replica.engines["d1"]
    answer = await ask(world)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert error_of(answer)[0] == "overloaded_error"


@pytest.mark.parametrize("leg", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (404, "not_found_error"), (429, "rate_limit_error"),
     (500, "api_error")],
)  # fmt: skip
async def test_an_engines_refusal_has_the_shape_of_the_api(
    world: World, leg: str, status: int, kind: str
) -> None:
    engine = world.prefill if leg == "prefill" else world.decode
    engine.script.statuses = [status] * 2  # decode may be asked once more, without blocks
    answer = await ask(world)
    assert answer.status == status
    assert error_of(answer) == (kind, f"engine says {status}")
    assert answer.plan["decision"] == "RECOMPUTE"
