"""An engine that is being stopped answers, and says nothing: another one does."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from tests.integration.turn_failures.cases import PLAIN_DECODE, PLAIN_PREFILL, Case, another, sent
from tests.support.fake_engine import ABORTED, ABORTED_CHAT, Received
from tests.support.router_world import SESSION
from tests.support.talk import HI

from contraflow.core.fleet import Role

pytestmark = pytest.mark.integration

MESSAGES = {"path": "/v1/messages", "max_tokens": 9}


@pytest.mark.parametrize("fields", [{}, {"stream": True}, MESSAGES, {**MESSAGES, "stream": True}])
async def test_decode_stops_and_another_computes(case: Case, fields: dict[str, Any]) -> None:
    async with another(case, Role.DECODE) as second:
        case.world.decode.script.statuses = [ABORTED]
        answer = await case.next(**fields)
        assert answer.status == 200
        assert "to be" in answer.raw.decode()
        assert answer.plan["retried"] == "DECODE_ELSEWHERE"
        assert sent(second.last) == PLAIN_DECODE  # what may have been read is not read again
        assert answer.plan["decode"] == "d2"
        assert list(case.world.app.homes.by_key.values()) == ["d2"]


@pytest.mark.parametrize("stream", [False, True])
async def test_decode_stops_and_there_is_no_other(case: Case, stream: bool) -> None:
    case.world.decode.script.statuses = [ABORTED]
    answer = await case.next(stream=stream)
    assert answer.status == 502
    assert case.world.app.homes.by_key == {}
    assert len(case.world.decode.received) == 1


async def test_decode_stops_in_mid_stream(case: Case) -> None:
    world, go_on = case.world, asyncio.Event()

    async def once_heard(received: Received) -> None:
        await go_on.wait()

    script = world.decode.script
    said = world.decode.stream_chunks(None)[:2]
    script.events = lambda received: [*said, *ABORTED_CHAT[1:]]
    script.between_chunks = once_heard
    body = {"model": "tiny", "messages": [HI], **SESSION, "stream": True}
    async with (
        another(case, Role.DECODE) as second,
        world.client.post(f"{world.url}/v1/chat/completions", json=body) as response,
    ):
        await response.content.readexactly(len(b"".join(said)))
        go_on.set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.content.read()
        assert second.received == []
        assert case.world.app.homes.by_key == {}


async def test_prefill_stops_and_another_computes(case: Case) -> None:
    async with another(case, Role.PREFILL) as second:
        case.world.prefill.script.statuses = [ABORTED]
        answer = await case.next()
        assert (answer.status, answer.plan["prefill"]) == (200, "p2")
        assert answer.plan["retried"] == "PREFILL_ELSEWHERE"
        assert sent(second.last) == PLAIN_PREFILL
        await case.settled()
        assert case.owner.returned == []  # it may have been read


async def test_prefill_stops_and_decode_computes(case: Case) -> None:
    case.world.prefill.script.statuses = [ABORTED]
    answer = await case.next()
    assert answer.status == 200
    assert sent(case.world.decode.last) == PLAIN_DECODE


async def test_what_an_answer_says_of_aborts_is_its_own_business(case: Case) -> None:
    said = 'it said "finish_reason":"abort", {"finish_reason": "abort"} and "abort"'
    case.world.decode.script.message = {"role": "assistant", "content": said}
    answer = await case.next()
    assert answer.status == 200
    assert answer.plan["decode"] == "d1"
    assert json.loads(answer.raw)["choices"][0]["message"]["content"] == said
