"""A decode stream that fails: before it says anything, at its beginning, in the middle."""

from __future__ import annotations

import aiohttp
import pytest
from tests.integration.turn_failures.cases import PLAIN_DECODE, Case, sent
from tests.support.fake_engine import CUT_AFTER_HEADERS, Received

pytestmark = pytest.mark.integration


async def test_decode_breaks_off_between_headers_and_first_event(case: Case) -> None:
    case.world.decode.script.statuses = [CUT_AFTER_HEADERS]
    answer = await case.next(stream=True)
    assert (answer.status, answer.plan["retried"]) == (200, "DECODE_WITHOUT_BLOCKS")
    assert answer.raw.endswith(b"data: [DONE]\n\n")
    assert sent(case.world.decode.last) == PLAIN_DECODE


ROLE = b'data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}\n\n'
FAILURE = b'data: {"error": {"message": "lost", "type": "InternalServerError", "code": 500}}\n\n'
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize("beginning", [[FAILURE, DONE], [ROLE, FAILURE, DONE], [ROLE + FAILURE]])
async def test_decode_begins_its_stream_with_a_failure(case: Case, beginning: list[bytes]) -> None:
    decode = case.world.decode

    def events(received: Received) -> list[bytes]:
        blocks = "remote_engine_id" in received.params
        return beginning if blocks else decode.stream_chunks(None)

    decode.script.events = events
    answer = await case.next(stream=True)
    assert answer.plan["retried"] == "DECODE_WITHOUT_BLOCKS"
    assert answer.raw == b"".join(decode.stream_chunks(None))
    assert len(decode.received) == 2


async def test_decode_breaks_off_after_the_role_of_its_answer(case: Case) -> None:
    decode = case.world.decode

    def events(received: Received) -> list[bytes]:
        blocks = "remote_engine_id" in received.params
        return [ROLE, ROLE] if blocks else decode.stream_chunks(None)

    async def cut(received: Received) -> None:
        if "remote_engine_id" in received.params:
            raise ConnectionError("cut")

    decode.script.events, decode.script.before_end = events, cut
    answer = await case.next(stream=True)
    assert answer.plan["retried"] == "DECODE_WITHOUT_BLOCKS"
    assert answer.raw == b"".join(decode.stream_chunks(None))


async def test_a_stream_that_says_nothing_is_passed_on_as_it_is(case: Case) -> None:
    case.world.decode.script.events = lambda received: [ROLE, ROLE]
    answer = await case.next(stream=True)
    assert (answer.status, answer.raw) == (200, ROLE * 2)


async def test_decode_begins_its_stream_with_an_error_of_the_request(case: Case) -> None:
    refusal = b'data: {"error": {"message": "no", "type": "BadRequestError", "code": 400}}\n\n'
    case.world.decode.script.events = lambda received: [refusal, b"data: [DONE]\n\n"]
    answer = await case.next(stream=True)
    assert answer.raw.startswith(refusal)
    assert len(case.world.decode.received) == 1


async def test_scenario_20_decode_breaks_off_in_mid_stream(case: Case) -> None:
    async def cut(received: Received) -> None:
        raise ConnectionError("cut")

    case.world.decode.script.between_chunks = cut
    with pytest.raises(aiohttp.ClientPayloadError):
        await case.next(stream=True)
    assert len(case.world.decode.received) == 1
    assert case.world.app.homes.by_key == {}
