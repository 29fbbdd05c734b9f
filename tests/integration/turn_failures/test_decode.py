"""The decode leg gets no blocks, finds no engine, fails or is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.integration.turn_failures.cases import (
    PLAIN_DECODE,
    Case,
    another,
    case_of,
    error_of,
    held,
    sent,
)
from tests.support.fake_engine import CUT_AFTER_HEADERS, TIP, Received
from tests.support.router_world import config_of
from tests.support.wait import until

from contraflow.core.fleet import Role

pytestmark = pytest.mark.integration


def handed_over(case: Case) -> str:
    """What names the blocks that the last prefill leg left."""
    params = case.world.prefill.own_params(case.world.prefill.last)
    assert params is not None
    return f"{params['remote_engine_id']}/{params['remote_request_id']}"


@pytest.mark.parametrize("params", [None, {"remote_engine_id": "p1"}])
async def test_prefill_hands_nothing_over(case: Case, params: dict[str, Any] | None) -> None:
    case.world.prefill.script.params = lambda received: params
    answer = await case.next()
    assert answer.status == 200
    assert sent(case.world.decode.last) == PLAIN_DECODE


async def test_decode_refuses_connections_and_another_gets_the_blocks(case: Case) -> None:
    async with another(case, Role.DECODE) as second:
        await case.world.decode.stop()
        answer = await case.next()
        assert (answer.status, answer.plan["decode"]) == (200, "d2")
        assert answer.plan["retried"] == "DECODE_ELSEWHERE"
        assert second.last.params["remote_engine_id"] == "p1"
        assert second.last.params["contraflow"]["tip"] == TIP.to_json()
        assert list(case.world.app.homes.by_key.values()) == ["d2"]


async def test_decode_refuses_connections_and_the_other_can_not_pull(case: Case) -> None:
    async with another(case, Role.DECODE, compatibility_class="another") as second:
        await case.world.decode.stop()
        answer = await case.next()
        assert (answer.status, answer.plan["decode"]) == (200, "d2")
        assert sent(second.last) == PLAIN_DECODE


async def test_decode_refuses_connections_and_there_is_no_other(case: Case) -> None:
    await case.world.decode.stop()
    answer = await case.next()
    assert answer.status == 502
    assert len(case.world.prefill.received) == 1
    assert case.world.app.homes.by_key == {}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("failure", [0, 500, 503])
async def test_decode_fails_before_its_first_byte(case: Case, failure: int, stream: bool) -> None:
    case.world.decode.script.statuses = [failure]
    answer = await case.next(stream=stream)
    assert (answer.status, answer.plan["retried"]) == (200, "DECODE_WITHOUT_BLOCKS")
    first, second = case.world.decode.received
    assert first.params["remote_engine_id"] == "p1"
    assert sent(second) == PLAIN_DECODE
    told = second.params["contraflow"]
    assert told["session_key"] == first.params["contraflow"]["session_key"]
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    assert answer.plan["turn"] in await case.settled()  # it retains all the same


async def test_decode_fails_with_blocks_and_without(case: Case) -> None:
    case.world.decode.script.statuses = [500, 503]
    answer = await case.next()
    assert (answer.status, error_of(answer)["message"]) == (503, "engine says 503")
    assert len(case.world.decode.received) == 2
    assert case.world.app.homes.by_key == {}


async def test_decode_dies_with_blocks_and_another_computes(case: Case) -> None:
    async with another(case, Role.DECODE) as second:

        async def die(received: Received) -> None:
            asyncio.get_running_loop().create_task(case.world.decode.stop())
            await asyncio.Event().wait()

        case.world.decode.script.before_answer = die
        answer = await case.next()
        assert answer.status == 200
        assert answer.plan["retried"] == "DECODE_WITHOUT_BLOCKS+DECODE_ELSEWHERE"
        assert sent(second.last) == PLAIN_DECODE


@pytest.mark.parametrize("status", [400, 404, 429])
async def test_scenario_07_decode_rejects_the_request(case: Case, status: int) -> None:
    case.world.decode.script.statuses = [status]
    answer = await case.next()
    assert (answer.status, error_of(answer)["message"]) == (status, f"engine says {status}")
    assert len(case.world.decode.received) == 1
    assert case.world.app.homes.by_key == {}
    await case.settled()
    assert case.owner.release_calls == [[handed_over(case)]]


async def test_scenario_07_decode_can_not_be_reached(case: Case) -> None:
    await case.world.decode.stop()
    assert (await case.next()).status == 502
    await case.settled()
    assert case.owner.release_calls == [[handed_over(case)]]


@pytest.mark.parametrize("statuses", [[], [500], [0], [500, 400]])
async def test_blocks_that_decode_may_have_read_are_left_to_it(
    case: Case, statuses: list[int]
) -> None:
    case.world.decode.script.statuses = statuses
    await case.next()
    await case.settled()
    assert [handed_over(case)] not in case.owner.release_calls


async def test_decode_fails_without_blocks(case: Case) -> None:
    case.world.prefill.script.params = lambda received: None
    case.world.decode.script.statuses = [500]
    answer = await case.next()
    assert (answer.status, error_of(answer)["message"]) == (500, "engine says 500")
    assert len(case.world.decode.received) == 1


async def test_decode_on_a_connection_that_died_idle_is_sent_again_without_blocks_too(
    case: Case,
) -> None:
    case.world.prefill.script.params = lambda received: None
    case.world.decode.script.statuses = [0]  # on the connection of the turn before
    answer = await case.next()
    assert (answer.status, answer.plan["retried"]) == (200, "DECODE_RESENT")


async def test_decode_breaks_off_after_the_headers_of_a_whole_answer(case: Case) -> None:
    case.world.decode.script.statuses = [CUT_AFTER_HEADERS]
    assert (await case.next()).status == 502  # it has generated
    assert len(case.world.decode.received) == 1


async def test_decode_is_silent_for_too_long() -> None:
    config = msgspec.structs.replace(config_of(), decode_timeout_seconds=0.2)
    async with case_of(config) as case:
        with held(case.world.decode):
            assert (await case.next()).status == 504
        await until(lambda: case.world.decode.last.disconnected, "the leg is aborted")
        assert len(case.world.decode.received) == 1
