"""The prefill leg finds no engine, fails or is refused; the pull is declined or fails."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.integration.turn_failures.cases import (
    PLAIN_DECODE,
    PLAIN_PREFILL,
    Case,
    another,
    case_of,
    claimed,
    error_of,
    held,
    sent,
)
from tests.support.fake_engine import CUT_AFTER_HEADERS, Received
from tests.support.router_world import config_of
from tests.support.wait import until

from contraflow.core.fleet import Role
from contraflow.core.handle import State
from contraflow.core.instructions import Pull
from contraflow.web import ClientLimits

pytestmark = pytest.mark.integration


async def test_prefill_refuses_connections_and_another_takes_the_claim(case: Case) -> None:
    async with another(case, Role.PREFILL) as second:
        await case.world.prefill.stop()
        answer = await case.next()
        assert answer.status == 200
        assert (answer.plan["prefill"], answer.plan["decision"]) == ("p2", "PULL")
        assert answer.plan["retried"] == "PREFILL_ELSEWHERE"
        assert claimed(second.last)
        await case.settled()
        assert case.owner.reads == [case.first]
        assert case.owner.returned == []


async def test_prefill_refuses_connections_and_the_other_can_not_pull(case: Case) -> None:
    async with another(case, Role.PREFILL, bidirectional=False) as second:
        await case.world.prefill.stop()
        answer = await case.next()
        assert (answer.status, answer.plan["prefill"]) == (200, "p2")
        assert (answer.plan["decision"], answer.plan["reason"]) == ("RECOMPUTE", "INCOMPATIBLE")
        assert sent(second.last) == PLAIN_PREFILL
        assert (await case.settled())[case.first] is State.RETAINED


@pytest.mark.parametrize("another_class", [False, True])
async def test_prefill_refuses_connections_and_decode_computes(
    case: Case, another_class: bool
) -> None:
    """Also where there is another one whose blocks decode could not read."""
    kind = {"compatibility_class": "B"} if another_class else {}
    async with another(case, Role.PREFILL, **kind) as second:
        await case.world.prefill.stop()
        if not another_class:
            await second.stop()
        answer = await case.next()
        assert (answer.status, answer.plan.get("prefill")) == (200, None)
        assert (answer.plan["decision"], answer.plan["reason"]) == (
            "RECOMPUTE", "PREFILL_UNREACHABLE",
        )  # fmt: skip
        assert sent(case.world.decode.last) == PLAIN_DECODE
        assert not second.received
        assert (await case.settled())[case.first] is State.RETAINED  # the claim came back


@pytest.mark.parametrize("failure", [0, CUT_AFTER_HEADERS, 500, 503])
async def test_prefill_fails_with_a_handle(case: Case, failure: int) -> None:
    case.world.prefill.script.statuses = [failure]
    answer = await case.next()
    assert (answer.status, answer.plan["retried"]) == (200, "PREFILL_WITHOUT_HANDLE")
    first, second = case.world.prefill.received
    assert claimed(first)
    assert sent(second) == PLAIN_PREFILL
    assert not claimed(second)
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    await case.settled()
    assert case.owner.reads == [case.first]  # once: nobody gives a claim back in doubt
    assert case.owner.returned == []


@pytest.mark.parametrize("failures", [[500, 503], [CUT_AFTER_HEADERS, 500]])
async def test_prefill_fails_with_a_handle_and_without(case: Case, failures: list[int]) -> None:
    case.world.prefill.script.statuses = failures[:]
    answer = await case.next()
    assert (answer.status, error_of(answer)["message"]) == (
        failures[1], f"engine says {failures[1]}",
    )  # fmt: skip
    assert len(case.world.prefill.received) == 2
    assert not case.world.decode.received


async def test_prefill_dies_with_a_handle_and_another_computes(case: Case) -> None:
    async with another(case, Role.PREFILL) as second:

        async def die(received: Received) -> None:
            case.owner.read(received.params["contraflow"]["claim_id"])
            asyncio.get_running_loop().create_task(case.world.prefill.stop())
            await asyncio.Event().wait()

        case.world.prefill.script.before_answer = die
        answer = await case.next()
        assert answer.status == 200
        assert answer.plan["retried"] == "PREFILL_WITHOUT_HANDLE+PREFILL_ELSEWHERE"
        assert sent(second.last) == PLAIN_PREFILL
        await case.settled()
        assert case.owner.reads == [case.first]
        assert case.owner.returned == []


@pytest.mark.parametrize("status", [400, 404, 422])
async def test_scenario_07_prefill_rejects_the_request(case: Case, status: int) -> None:
    case.world.prefill.script.statuses = [status]
    answer = await case.next()
    assert (answer.status, error_of(answer)["message"]) == (status, f"engine says {status}")
    assert len(case.world.prefill.received) == 1
    assert not case.world.decode.received
    await case.settled()
    assert case.owner.returned == []


async def test_prefill_fails_without_a_handle(case: Case) -> None:
    case.world.prefill.script.statuses = [500]
    answer = await case.world.chat()
    assert (answer.status, error_of(answer)["message"]) == (500, "engine says 500")
    assert len(case.world.prefill.received) == 1


async def test_prefill_breaks_off_without_a_handle(case: Case) -> None:
    case.world.prefill.script.statuses = [CUT_AFTER_HEADERS]
    assert (await case.world.chat()).status == 502
    assert len(case.world.prefill.received) == 1


async def test_prefill_is_silent_for_too_long() -> None:
    limits = ClientLimits(header_timeout=0.05)
    async with case_of(msgspec.structs.replace(config_of(), engines=limits)) as case:
        with held(case.world.prefill):
            answer = await case.next()
        assert answer.status == 504
        assert len(case.world.prefill.received) == 1
        await until(lambda: case.world.prefill.last.disconnected, "the leg is aborted")
        await case.settled()
        assert case.owner.returned == []


@pytest.mark.parametrize("outcome", ["DECLINED_MISMATCH", "DECLINED_SMALL", "DECLINED_NO_PROOF"])
async def test_scenario_05_prefill_declines_the_handle(case: Case, outcome: str) -> None:
    case.world.prefill.script.pull = lambda received: Pull(outcome, "d1")
    answer = await case.next()
    assert (answer.status, answer.plan["outcome"]) == (200, outcome)
    assert (await case.settled())[case.first] is State.RETAINED
    assert case.owner.reads == []


async def test_the_pull_fails_and_prefill_computes(case: Case) -> None:
    case.world.prefill.script.pull = lambda received: Pull("FAILED", "d1")
    answer = await case.next()
    assert (answer.status, answer.plan["outcome"]) == (200, "FAILED")
    await case.settled()
    assert case.owner.returned == []
