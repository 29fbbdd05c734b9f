"""No prefill engine is eligible: turns go to decode alone, and go on from there as any other."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.fake_engine import FakeEngine
from tests.support.owner import owned_world
from tests.support.router_stub import chat, kinds, read, router_stub
from tests.support.router_world import KEY, SESSION, World, config_of
from tests.support.wait import until

from contraflow.core.fleet import Role
from contraflow.core.handle import State
from contraflow.v1 import router_service_pb2 as pb

if TYPE_CHECKING:
    from contraflow.v1.router_service_pb2_grpc import RouterServiceAsyncStub

pytestmark = pytest.mark.integration

ID = SESSION["session_id"]
either = pytest.mark.parametrize("session", [SESSION, {}], ids=["named", "by messages"])
PLAIN_DECODE = {"do_remote_decode": False, "do_remote_prefill": False}


def drain_prefill(world: World) -> None:
    world.know(replace(world.prefill.engine, draining=True))


async def test_scenario_33_decode_computes_and_retains(world: World) -> None:
    drain_prefill(world)

    answer = await world.chat(**SESSION)

    assert (answer.status, answer.plan["decode"], answer.plan.get("prefill")) == (200, "d1", None)
    assert (answer.plan["decision"], answer.plan["reason"]) == ("DECODE_ONLY", "NO_PREFILL_ENGINE")
    assert not world.prefill.received
    sent = dict(world.decode.last.params)
    ours = sent.pop("contraflow")
    assert sent == PLAIN_DECODE
    assert (ours["session_key"], ours["decision"]) == (KEY, "DECODE_ONLY")


def history(world: World, turns: int) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
    for turn in range(1, turns):
        messages += [world.decode.script.message, {"role": "user", "content": f"and {turn}?"}]
    return {"messages": messages}


@either
async def test_nothing_is_claimed_and_the_handle_of_the_turn_before_goes(
    session: dict[str, Any],
) -> None:
    async with owned_world() as (world, owner):
        first = await world.chat(**session, **history(world, 1))
        owner.publish(world.replica)
        drain_prefill(world)
        second = await world.chat(**session, **history(world, 2))
        assert second.plan["decision"] == "DECODE_ONLY"
        assert not owner.acquired
        await until(lambda: list(owner.handles()) == [second.plan["turn"]], "the first is released")
        assert owner.released == [first.plan["turn"]]
        assert owner.reads == []


@either
async def test_a_prefill_engine_that_is_back_pulls_what_decode_has_retained(
    session: dict[str, Any],
) -> None:
    async with owned_world() as (world, owner):
        drain_prefill(world)
        first = await world.chat(**session, **history(world, 1))
        owner.publish(world.replica)
        world.know(world.prefill.engine)
        second = await world.chat(**session, **history(world, 2))
        assert (first.plan["decision"], second.plan["decision"]) == ("DECODE_ONLY", "PULL")
        assert owner.reads == [first.plan["turn"]]


@either
async def test_the_handle_of_a_home_that_drains_too_is_released(session: dict[str, Any]) -> None:
    async with owned_world() as (world, owner):
        first = await world.chat(**session, **history(world, 1))
        owner.publish(world.replica)
        drain_prefill(world)
        world.know(replace(world.decode.engine, draining=True))
        async with FakeEngine("d2", Role.DECODE, agent_address=world.agent_address) as other:
            owner.attach(other)
            world.know(other.engine)
            second = await world.chat(**session, **history(world, 2))
            await until(lambda: owner.released == [first.plan["turn"]], "the first is released")
            assert (second.plan["decision"], second.plan["decode"]) == ("DECODE_ONLY", "d2")
            assert owner.handles() == {second.plan["turn"]: State.RETAINED}


async def test_what_skips_the_prefix_cache_goes_as_ever(world: World) -> None:
    drain_prefill(world)
    answer = await world.chat(**SESSION, n=2)
    assert (answer.status, answer.plan["decision"]) == (200, "DECODE_ONLY")
    assert "kv_transfer_params" not in world.decode.last.body


async def test_over_grpc(world: World, stub: RouterServiceAsyncStub) -> None:
    del world.replica.engines["p1"]

    events = await read(stub, chat("hi", session_id=ID))

    plan, result = events[0].plan, events[-1].result
    assert kinds(events)[-1] == "result"
    for told in (plan, result):
        assert (told.decision, told.reason) == (
            pb.DECISION_DECODE_ONLY, pb.DECISION_REASON_NO_PREFILL_ENGINE,
        )  # fmt: skip
    assert (plan.prefill_engine_id, plan.decode_engine_id) == ("", "d1")
    assert not result.HasField("pull")


async def test_another_decode_engine_takes_the_place_of_one_that_refuses(world: World) -> None:
    drain_prefill(world)
    async with FakeEngine("d2", Role.DECODE, agent_address=world.agent_address) as other:
        world.know(other.engine)
        world.know_session()
        await world.decode.stop()
        answer = await world.chat(**SESSION)
        assert (answer.status, answer.plan["decode"]) == (200, "d2")
        assert answer.plan["retried"] == "DECODE_ELSEWHERE"
        assert other.last.params["do_remote_decode"] is False


async def test_the_metrics_tell_it_apart(world: World) -> None:
    drain_prefill(world)
    await world.chat(**SESSION)
    labels = {"status": "200", "decision": "DECODE_ONLY", "reason": "NO_PREFILL_ENGINE",
              "denial": ""}  # fmt: skip
    value = world.app.metrics.registry.get_sample_value("contraflow_router_turns_total", labels)
    assert value == 1


@either
@pytest.mark.parametrize(
    ("below", "decision"), [(0, "PULL"), (50, "PULL"), (500, "DECODE_ONLY")]
)  # fmt: skip
async def test_a_turn_that_adds_little_stays_at_its_home_if_the_operator_wants_it(
    session: dict[str, Any], below: int, decision: str
) -> None:
    config = config_of(f"decode_only_below_tokens = {below}")
    async with owned_world(config) as (world, owner), router_stub(world) as stub:
        first = await world.chat(**session, **history(world, 1))
        owner.publish(world.replica)
        body = {"model": "tiny", **session, **history(world, 2)}
        planned = await stub.PlanTurn(
            pb.PlanTurnRequest(tenant="default", openai_json=json.dumps(body))
        )
        assert planned.decision == pb.Decision.Value(f"DECISION_{decision}")
        world.prefill.received.clear()

        second = await world.chat(**session, **history(world, 2))

        assert second.plan["decision"] == decision
        if decision == "DECODE_ONLY":
            assert second.plan["reason"] == "SHORT_SUFFIX"
            assert not world.prefill.received
            assert not owner.acquired
            left = [second.plan["turn"]]
            await until(lambda: list(owner.handles()) == left, "the first is released")
            owner.publish(world.replica)
            # Much is added: prefill pulls what decode has retained.
            long = history(world, 3)
            long["messages"][-1]["content"] = "x" * 500
            third = await world.chat(**session, **long)
            assert third.plan["decision"] == "PULL"
            assert owner.reads == left
        else:
            assert owner.reads == [first.plan["turn"]]


async def test_a_first_turn_is_long_however_short() -> None:
    config = config_of("decode_only_below_tokens = 100000")
    async with owned_world(config) as (world, _):
        answer = await world.chat(**SESSION)
        assert (answer.plan["decision"], answer.plan["prefill"]) == ("RECOMPUTE", "p1")
