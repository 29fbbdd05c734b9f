"""The client leaves: during acquire, before, in and between the legs, in mid-stream."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.integration.turn_failures.cases import Case, case_of, claimed, held
from tests.support.fake_engine import Received, hang
from tests.support.router_world import SESSION, config_of
from tests.support.wait import until

from contraflow.core.handle import State
from contraflow.web import ClientLimits

pytestmark = pytest.mark.integration


def in_flight(case: Case) -> float | None:
    registry = case.world.app.metrics.registry
    return registry.get_sample_value("contraflow_router_turns_in_flight")


async def test_scenario_06_the_client_leaves_while_acquiring(case: Case) -> None:
    case.owner.hold = asyncio.Event()
    turn = asyncio.create_task(case.next())
    await until(lambda: case.owner.handles() == {case.first: State.CLAIMED}, "the claim is made")
    turn.cancel()
    await until(lambda: bool(case.owner.returned), "the claim comes back")
    assert await case.settled() == {case.first: State.RETAINED}
    assert not case.world.prefill.received


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_scenario_06_the_client_leaves_while_a_leg_waits_for_a_connection(leg: str) -> None:
    limits = ClientLimits(max_connections=1)
    async with case_of(msgspec.structs.replace(config_of(), engines=limits)) as case:
        engine = case.world.prefill if leg == "prefill" else case.world.decode
        with held(engine):
            other = asyncio.create_task(case.world.chat())
            await until(lambda: bool(engine.received), "the connection is taken")
            turn = asyncio.create_task(case.next())
            if leg == "prefill":
                await until(lambda: State.CLAIMED in case.owner.handles().values(), "claimed")
            else:
                await until(lambda: case.world.prefill.received[-1].finished
                            and claimed(case.world.prefill.last), "prefill is done")  # fmt: skip
            turn.cancel()
            await until(lambda: in_flight(case) == 1, "the turn has ended")
            live = await case.settled()
            assert live == ({case.first: State.RETAINED} if leg == "prefill" else {})
            assert len(engine.received) == 1
            other.cancel()
            await asyncio.wait([other])


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_scenario_06_the_client_leaves_while_a_leg_runs(case: Case, leg: str) -> None:
    engine = case.world.prefill if leg == "prefill" else case.world.decode
    with held(engine):
        turn = asyncio.create_task(case.next())
        await until(lambda: bool(engine.received), f"{leg} runs")
        turn.cancel()
        await until(lambda: engine.last.disconnected, f"{leg} is aborted")
    assert bool(case.world.decode.received) is (leg == "decode")
    await case.settled()
    assert case.owner.returned == []  # bytes were sent: the claim ends by itself
    assert case.world.app.homes.by_key == {}


async def test_scenario_06_the_client_leaves_between_first_try_and_second(case: Case) -> None:
    case.world.prefill.script.statuses = [500]
    before = case.world.prefill.script.before_answer
    assert before is not None

    async def second_hangs(received: Received) -> None:
        await before(received)
        if not claimed(received):
            await asyncio.Event().wait()

    case.world.prefill.script.before_answer = second_hangs
    turn = asyncio.create_task(case.next())
    await until(lambda: len(case.world.prefill.received) == 2, "it is sent again")
    turn.cancel()
    await until(lambda: case.world.prefill.last.disconnected, "the second try is aborted")
    await case.settled()
    assert case.owner.returned == []


async def test_scenario_06_the_client_leaves_in_mid_stream(case: Case) -> None:
    case.world.decode.script.between_chunks = hang
    body = {"model": "tiny", "messages": [], "stream": True, **SESSION}
    url = f"{case.world.url}/v1/chat/completions"
    async with case.world.client.post(url, json=body) as response:
        assert (await response.content.readline()).startswith(b"data: ")
        response.close()
    await until(lambda: case.world.decode.last.disconnected, "decode is aborted")
    assert case.world.app.homes.by_key == {}
