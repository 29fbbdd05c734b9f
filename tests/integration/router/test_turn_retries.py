"""A leg that fails: what is sent again, and what is the client's answer."""

from __future__ import annotations

import json

import aiohttp
import pytest
from tests.support.fake_engine import Received
from tests.support.router_world import SESSION, World

pytestmark = pytest.mark.integration


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
    assert "claim_id" not in second.ours
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


async def test_parameters_that_can_not_be_used_leave_decode_alone(world: World) -> None:
    world.prefill.script.params = lambda received: None
    answer = await world.chat(**SESSION)
    assert answer.status == 200
    sent = dict(world.decode.last.params)
    sent.pop("contraflow")
    assert sent == {"do_remote_decode": False, "do_remote_prefill": False}


async def test_a_stream_that_breaks_is_seen_as_broken(world: World) -> None:
    async def cut(received: Received) -> None:
        raise ConnectionError("cut")

    world.decode.script.between_chunks = cut
    with pytest.raises(aiohttp.ClientPayloadError):
        await world.chat(**SESSION, stream=True)
    assert world.app.homes.by_key == {}
