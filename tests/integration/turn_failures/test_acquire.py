"""The agent denies the claim, does not answer, or fails after it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
import pytest
from tests.integration.turn_failures.cases import PLAIN_PREFILL, Case, case_of, sent
from tests.support.router_world import config_of

from contraflow.core.errors import HandleClaimed
from contraflow.core.handle import State

pytestmark = pytest.mark.integration

SOON = msgspec.structs.replace(config_of(), acquire_deadline_seconds=0.05)


async def test_acquire_denied(case: Case) -> None:
    case.owner.denial = HandleClaimed("another turn has it")
    answer = await case.next()
    assert answer.status == 200
    assert answer.plan["decision"] == "RECOMPUTE"
    assert answer.plan["denial"] == "HANDLE_CLAIMED"
    assert [sent(one) for one in case.world.prefill.received] == [PLAIN_PREFILL]
    assert (await case.settled())[case.first] is State.RETAINED


async def test_acquire_refused_by_the_address(case: Case) -> None:
    await case.world.stop_agent()
    answer = await case.next()
    assert (answer.status, answer.plan["denial"]) == (200, "UNREACHABLE")
    assert [sent(one) for one in case.world.prefill.received] == [PLAIN_PREFILL]


async def test_acquire_unanswered_until_its_deadline_and_granted_late() -> None:
    async with case_of(SOON) as case:
        case.owner.hold = asyncio.Event()
        answer = await case.next()  # while the agent hangs, on this call and all that follow
        assert (answer.status, answer.plan["reason"]) == (200, "ACQUIRE_TIMEOUT")
        assert [sent(one) for one in case.world.prefill.received] == [PLAIN_PREFILL]
        case.owner.hold.set()
        assert (await case.settled())[case.first] is State.RETAINED


async def test_an_agent_that_never_says_a_word_holds_no_turn_up() -> None:
    silent: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: silent.append(writer), "127.0.0.1", 0)
    async with server, case_of(SOON) as case:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        case.world.know(replace(case.world.decode.engine, agent_address=address))
        answer = await case.next()
        assert (answer.status, answer.plan["reason"]) == (200, "ACQUIRE_TIMEOUT")
        assert silent  # it was asked, and has not answered yet
        for writer in silent:
            writer.close()


async def test_a_grant_that_can_not_be_read_is_given_back(case: Case) -> None:
    case.owner.spoil = True
    answer = await case.next()
    assert (answer.status, answer.plan["decision"]) == (200, "RECOMPUTE")
    assert (await case.settled())[case.first] is State.RETAINED


async def test_an_agent_that_fails_after_the_claim_gets_it_back(case: Case) -> None:
    case.owner.break_down = True
    answer = await case.next()
    assert (answer.status, answer.plan["decision"]) == (200, "RECOMPUTE")
    assert (await case.settled())[case.first] is State.RETAINED
