"""PlanTurn: what would be done with a turn, why, and what it would cost."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.fake_engine import Received
from tests.support.router_stub import chat, read, router_stub
from tests.support.router_world import KEY, SECRET, SESSION, World, config_of, router_world
from tests.support.wait import until

from contraflow.core.break_even import PASS_SECONDS
from contraflow.core.cost import PROFILES
from contraflow.core.errors import ContraflowError, InvalidArgument, NoEligibleEngine
from contraflow.core.session import session_key
from contraflow.runtime.grpc_errors import domain_errors
from contraflow.v1 import router_service_pb2 as pb
from contraflow.wire.convert import seconds

if TYPE_CHECKING:
    from contraflow.v1.router_service_pb2_grpc import RouterServiceAsyncStub

pytestmark = pytest.mark.integration

ID = SESSION["session_id"]
HI = [{"role": "user", "content": "hi"}]


async def plan(stub: RouterServiceAsyncStub, **fields: Any) -> pb.PlanTurnResponse:
    request = pb.PlanTurnRequest(**{"tenant": "default", **fields})
    with domain_errors():
        return await stub.PlanTurn(request, timeout=30)


def costs(response: pb.PlanTurnResponse) -> list[tuple[str, int, int]]:
    return [
        (pb.Decision.Name(one.decision), one.pulled_tokens, one.computed_tokens)
        for one in response.estimates
    ]


async def test_a_session_that_would_be_pulled(world: World, stub: RouterServiceAsyncStub) -> None:
    world.know_session()

    found = await plan(stub, session_id=ID, prompt_tokens=400)

    assert (found.decision, found.reason) == (
        pb.DECISION_PULL, pb.DECISION_REASON_HANDLE_AVAILABLE,
    )  # fmt: skip
    assert found.session_key == KEY
    assert (found.handle_id, found.handle_tokens) == ("d1/chatcmpl-turn-1", 299)
    decode, prefill = found.candidates
    assert (decode.engine_id, decode.endpoint, decode.home) == (
        "d1", world.decode.engine.endpoint, True,
    )  # fmt: skip
    assert (prefill.engine_id, prefill.endpoint, prefill.home) == (
        "p1", world.prefill.engine.endpoint, False,
    )  # fmt: skip
    assert costs(found) == [("DECISION_PULL", 299, 101), ("DECISION_RECOMPUTE", 0, 400)]
    profile = PROFILES["p5en-h200-efa"]
    computed = PASS_SECONDS + profile.compute_seconds(400, 0)
    assert seconds(found.estimates[1].time) == pytest.approx(computed, abs=1e-8)
    assert all(seconds(one.error) > 0 for one in found.estimates)
    assert not world.agent.acquired
    assert not world.prefill.received


async def test_the_profile_is_a_setting() -> None:
    config = config_of('cost_profile = "cpu-demo"')
    async with router_world(config) as world, router_stub(world) as stub:
        found = await plan(stub, prompt_tokens=4000)
        computed = PASS_SECONDS + PROFILES["cpu-demo"].compute_seconds(4000, 0)
        assert costs(found) == [("DECISION_RECOMPUTE", 0, 4000)]
        assert seconds(found.estimates[0].time) == pytest.approx(computed, abs=1e-8)


async def test_without_a_length_the_handle_is_the_prompt(
    world: World, stub: RouterServiceAsyncStub
) -> None:
    assert costs(await plan(stub)) == []
    world.know_session()
    found = await plan(stub, session_id=ID)
    assert costs(found) == [("DECISION_PULL", 299, 0), ("DECISION_RECOMPUTE", 0, 299)]


async def test_a_small_handle_is_home_all_the_same(
    world: World, stub: RouterServiceAsyncStub
) -> None:
    world.know_session(tokens=10)
    found = await plan(stub, session_id=ID, prompt_tokens=50)
    assert found.reason == pb.DECISION_REASON_BELOW_THRESHOLD
    assert [one.engine_id for one in found.candidates if one.home] == ["d1"]
    assert costs(found) == [("DECISION_RECOMPUTE", 0, 50), ("DECISION_PULL", 10, 40)]


async def test_a_handle_of_another_class_can_not_be_pulled(
    world: World, stub: RouterServiceAsyncStub
) -> None:
    world.know_session()
    world.know(replace(world.prefill.engine, compatibility_class="other"))
    found = await plan(stub, session_id=ID)
    assert found.reason == pb.DECISION_REASON_INCOMPATIBLE
    assert found.prefill_engine_id == ""  # nor could it hand anything over
    assert costs(found) == [("DECISION_RECOMPUTE", 0, 299)]


async def test_the_load_of_each_engine_is_told(world: World, stub: RouterServiceAsyncStub) -> None:
    released = asyncio.Event()

    async def hold(received: Received) -> None:
        await released.wait()

    world.decode.script.before_answer = hold
    turn = asyncio.create_task(read(stub, chat()))
    await until(lambda: bool(world.decode.received), "decode runs")
    found = await plan(stub)
    assert {one.engine_id: one.load for one in found.candidates} == {"p1": 0, "d1": 1}
    released.set()
    await turn


# Bodies.


@pytest.mark.parametrize("name", ["session_id", "conversation_id", "prompt_cache_key"])
async def test_a_body_names_its_session(
    world: World, stub: RouterServiceAsyncStub, name: str
) -> None:
    world.know_session()
    body = json.dumps({name: ID, "messages": HI, "model": "tiny"})
    found = await plan(stub, openai_json=body)
    assert (found.session_key, found.decision) == (KEY, pb.DECISION_PULL)
    other = await plan(stub, openai_json=body, session_id="other")
    assert other.session_key == session_key(SECRET, "default", "other")
    assert other.decision == pb.DECISION_RECOMPUTE


async def test_a_body_without_a_session_is_found_by_its_messages(
    world: World, stub: RouterServiceAsyncStub
) -> None:
    await world.chat(messages=HI)
    history = [*HI, world.decode.script.message, {"role": "user", "content": "and?"}]
    found = await plan(stub, openai_json=json.dumps({"model": "tiny", "messages": history}))
    assert found.decision == pb.DECISION_PULL
    answer = await world.chat(messages=history)
    assert answer.plan["decision"] == "PULL"


async def test_a_body_tells_what_can_not_be_claimed_for(
    world: World, stub: RouterServiceAsyncStub
) -> None:
    world.know_session()
    found = await plan(stub, session_id=ID, openai_json='{"n": 2}')
    assert found.reason == pb.DECISION_REASON_UNSUPPORTED_REQUEST
    assert (found.prefill_engine_id, found.decode_engine_id) == ("", "d1")
    found = await plan(stub, session_id=ID, openai_json='{"echo": true}')
    assert found.reason == pb.DECISION_REASON_UNSUPPORTED_REQUEST
    assert found.prefill_engine_id == "p1"


@pytest.mark.parametrize("body", ["{", "[]", '{"model": 7}', '{"session_id": {}}'])
async def test_a_body_that_is_wrong(stub: RouterServiceAsyncStub, body: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await plan(stub, openai_json=body)
    assert caught.value.metadata == {"field": "openai_json"}


async def test_a_tenant_is_needed(stub: RouterServiceAsyncStub) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await plan(stub, tenant="")
    assert caught.value.metadata == {"field": "tenant"}


async def missing(stub: RouterServiceAsyncStub, **fields: Any) -> ContraflowError:
    with pytest.raises(NoEligibleEngine) as caught:
        await plan(stub, **fields)
    return caught.value


async def test_what_is_missing_is_named(world: World, stub: RouterServiceAsyncStub) -> None:
    assert "decode" in str(await missing(stub, model="none"))
    del world.replica.engines["d1"]
    assert "decode" in str(await missing(stub))


async def test_decode_alone_has_nothing_to_estimate(
    world: World, stub: RouterServiceAsyncStub
) -> None:
    world.know_session()
    world.know(replace(world.prefill.engine, draining=True))
    found = await plan(stub, session_id=ID, prompt_tokens=400)
    assert (found.decision, found.reason) == (
        pb.DECISION_DECODE_ONLY, pb.DECISION_REASON_NO_PREFILL_ENGINE,
    )  # fmt: skip
    assert (found.prefill_engine_id, found.decode_engine_id, found.handle_id) == ("", "d1", "")
    assert [(one.engine_id, one.home, one.rejected_reason) for one in found.candidates] == [
        ("d1", True, ""), ("p1", False, "draining"),
    ]  # fmt: skip
    assert costs(found) == []


async def test_a_refusal_arrives_however_long_what_it_quotes(
    stub: RouterServiceAsyncStub,
) -> None:
    with pytest.raises(NoEligibleEngine):
        await plan(stub, tenant="default", model="m" * 100_000)
