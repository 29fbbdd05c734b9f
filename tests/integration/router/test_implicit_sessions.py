"""Conversations that name no session, through routers that know them by their messages."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.fake_engine import TOOL_CALL, FakeEngine
from tests.support.owner import Owner
from tests.support.router_world import Answer, World, another_router, config_of, router_world

from contraflow.core.fleet import Role
from contraflow.core.session import is_session_key
from contraflow.router.config import RouterConfig

pytestmark = pytest.mark.integration

Json = dict[str, Any]
HI: Json = {"role": "user", "content": "hi"}
MORE: Json = {"role": "user", "content": "go on"}
YES: Json = {"role": "assistant", "content": "yes?"}
NO: Json = {"role": "assistant", "content": "no!"}


@asynccontextmanager
async def owned_world(config: RouterConfig | None = None) -> AsyncIterator[World]:
    owner = Owner()  # type: ignore[abstract]  # the router calls only two methods
    async with router_world(config, owner) as world:
        owner.attach(world.decode)
        yield world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with owned_world() as world:
        yield world


def owner_of(world: World) -> Owner:
    assert isinstance(world.agent, Owner)
    return world.agent


def publish(world: World) -> None:
    owner_of(world).publish(world.replica)


async def say(world: World, *messages: Json, answer: Json = YES, **fields: Any) -> Answer:
    world.decode.script.message = answer
    answered = await world.chat(messages=messages, **fields)
    assert answered.status == 200
    return answered


def outcome(answer: Answer) -> tuple[str, str, str]:
    plan = answer.plan
    return plan["decision"], plan["reason"], plan.get("denial", "")


PULLED = ("PULL", "HANDLE_AVAILABLE", "")
NO_HANDLE = ("RECOMPUTE", "NO_HANDLE", "")
AMBIGUOUS = ("RECOMPUTE", "AMBIGUOUS_SESSION", "")


async def test_messages_alone_pull_the_handle_of_the_turn_before(world: World) -> None:
    first = await say(world, HI)
    assert outcome(first) == NO_HANDLE
    key = world.decode.last.params["contraflow"]["session_key"]
    assert is_session_key(key)

    second = await say(world, HI, YES, MORE)

    assert outcome(second) == PULLED
    [asked] = world.agent.acquired
    assert [asked.session_key] == list(asked.message_digests) == [key]
    assert asked.produced_by_turn_id == first.plan["turn"]
    third = await say(world, HI, YES, MORE, YES, MORE)
    assert outcome(third) == PULLED
    assert world.agent.acquired[1].produced_by_turn_id == second.plan["turn"]


async def test_both_legs_carry_the_key_of_the_turn_s_own_messages(world: World) -> None:
    await say(world, HI)
    before = world.decode.last.params["contraflow"]["session_key"]
    await say(world, HI, YES, MORE)

    prefill, decode = (e.last.params["contraflow"] for e in (world.prefill, world.decode))
    assert prefill["session_key"] == prefill["message_digest"] == decode["session_key"]
    assert decode["session_key"] == decode["message_digest"] == world.decode.last.body["session_id"]
    assert decode["session_key"] != before


async def test_another_router_knows_the_conversation_by_its_record(world: World) -> None:
    await say(world, HI)
    async with another_router(world) as other:
        assert outcome(await say(other, HI, YES, MORE)) == NO_HANDLE
        publish(other)
        assert outcome(await say(other, HI, YES, MORE)) == PULLED


async def test_an_edited_history_goes_on_from_the_part_that_was_not_edited(world: World) -> None:
    await say(world, HI)
    key = world.decode.last.params["contraflow"]["session_key"]
    async with another_router(world) as other:
        # A second turn that pulls nothing: the handles of both turns stay.
        await say(other, HI, YES, MORE)
    publish(world)

    edited = await say(world, HI, YES, {**MORE, "content": "stop"}, YES, MORE)

    assert outcome(edited) == PULLED
    assert world.agent.acquired[0].session_key == key


async def test_scenario_10_a_new_conversation_with_an_equal_opening_takes_nothing(
    world: World,
) -> None:
    await say(world, HI)
    publish(world)
    assert outcome(await say(world, HI)) == NO_HANDLE
    assert outcome(await say(world, HI, MORE)) == NO_HANDLE
    assert not world.agent.acquired


async def test_scenario_10_the_reply_tells_equal_openings_apart(world: World) -> None:
    yes = await say(world, HI, answer=YES)
    no = await say(world, HI, answer=NO)
    publish(world)

    assert outcome(await say(world, HI, NO, MORE)) == PULLED
    assert outcome(await say(world, HI, YES, MORE)) == PULLED
    asked = [request.produced_by_turn_id for request in world.agent.acquired]
    assert asked == [no.plan["turn"], yes.plan["turn"]]


async def test_a_streamed_reply_tells_equal_openings_apart_too(world: World) -> None:
    await say(world, HI, answer=YES)
    streamed = await say(world, HI, stream=True)
    publish(world)
    reply = {"role": "assistant", "content": "to be é", "tool_calls": [TOOL_CALL]}

    assert outcome(await say(world, HI, reply, MORE)) == PULLED
    assert world.agent.acquired[0].produced_by_turn_id == streamed.plan["turn"]


async def test_scenario_10_where_nothing_tells_them_apart_nothing_is_guessed(world: World) -> None:
    await say(world, HI, answer=YES)
    await say(world, HI, answer=NO)
    async with another_router(world) as other:
        publish(other)
        assert outcome(await say(other, HI, NO, MORE)) == AMBIGUOUS
    assert not world.agent.acquired


async def test_scenario_10_the_owner_sees_a_tie_that_no_record_tells_of(world: World) -> None:
    await say(world, HI, answer=YES)
    async with another_router(world) as other:
        publish(other)
        await say(world, HI, answer=NO)
        denied = await say(other, HI, NO, MORE)
    assert outcome(denied) == ("RECOMPUTE", "AMBIGUOUS_SESSION", "AMBIGUOUS_SESSION")
    assert "remote_block_ids" not in world.prefill.last.params


async def test_equal_openings_on_two_engines_each_go_home(world: World) -> None:
    async with FakeEngine("d2", Role.DECODE, agent_address=world.agent_address) as second:
        owner_of(world).attach(second)
        yes = await say(world, HI, answer=YES)
        world.replica.engines = {"p1": world.prefill.engine, "d2": second.engine}
        second.script.message = NO
        no = await say(world, HI)
        world.know(world.decode.engine)
        publish(world)

        for reply, turn, home in ((YES, yes, "d1"), (NO, no, "d2")):
            answer = await say(world, HI, reply, MORE)
            assert outcome(answer) == PULLED
            assert answer.plan["decode"] == home
            assert world.agent.acquired[-1].engine_id == home
            assert world.agent.acquired[-1].produced_by_turn_id == turn.plan["turn"]


async def test_equal_conversations_each_have_a_handle(world: World) -> None:
    turns = {(await say(world, HI)).plan["turn"] for _ in range(2)}
    assert [outcome(await say(world, HI, YES, MORE)) for _ in range(2)] == [PULLED] * 2
    assert {request.produced_by_turn_id for request in world.agent.acquired} == turns


async def test_scenario_11_forks_of_a_turn_go_on_by_themselves(world: World) -> None:
    await say(world, HI)
    publish(world)
    left, right = {**MORE, "content": "left"}, {**MORE, "content": "right"}

    assert outcome(await say(world, HI, YES, left)) == PULLED
    # The directory has not heard of the claim: the owner has.
    assert outcome(await say(world, HI, YES, right)) == (
        "RECOMPUTE", "ACQUIRE_DENIED", "HANDLE_NOT_FOUND",
    )  # fmt: skip
    for fork in (left, right):
        assert outcome(await say(world, HI, YES, fork, YES, MORE)) == PULLED


async def test_a_fork_does_not_spend_the_handle_of_an_equal_opening(world: World) -> None:
    await say(world, HI, answer=YES)
    await say(world, HI, answer=NO)
    publish(world)
    await say(world, HI, YES, MORE)
    denied = await say(world, HI, YES, {**MORE, "content": "other"})
    assert outcome(denied) == ("RECOMPUTE", "ACQUIRE_DENIED", "HANDLE_NOT_FOUND")
    assert outcome(await say(world, HI, NO, MORE)) == PULLED


async def test_tool_calls_go_on_like_any_reply(world: World) -> None:
    calling = {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]}
    asked = await say(world, HI, answer=calling, tools=[])
    await say(world, HI, answer=YES)
    publish(world)
    arguments = json.dumps(json.loads(TOOL_CALL["function"]["arguments"]))  # type: ignore[index]
    function = {"name": "look_up", "arguments": arguments}
    sent = {"role": "assistant", "tool_calls": [{**TOOL_CALL, "function": function}]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "42"}

    assert outcome(await say(world, HI, sent, result)) == PULLED
    assert world.agent.acquired[0].produced_by_turn_id == asked.plan["turn"]
    assert outcome(await say(world, HI, sent, result, YES, MORE)) == PULLED


async def test_text_in_parts_is_the_same_text(world: World) -> None:
    def parts(message: Json) -> Json:
        return {**message, "content": [{"type": "text", "text": message["content"]}], "name": None}

    await say(world, HI)
    assert outcome(await say(world, parts(HI), parts(YES), MORE)) == PULLED
    assert outcome(await say(world, HI, YES, parts(MORE), YES, MORE)) == PULLED


async def test_scenario_10_tenants_never_meet() -> None:
    tenants = '[tenants.red]\napi_keys = ["r"]\n[tenants.blue]\napi_keys = ["b"]\n'
    async with owned_world(config_of(tenants)) as world:
        red, blue = ({"headers": {"authorization": f"Bearer {key}"}} for key in "rb")
        await say(world, HI, **red)
        publish(world)
        assert outcome(await say(world, HI, YES, MORE, **blue)) == NO_HANDLE
        assert outcome(await say(world, HI, YES, MORE, **red)) == PULLED


async def test_an_id_and_messages_never_meet(world: World) -> None:
    await say(world, HI)
    assert outcome(await say(world, HI, YES, MORE, session_id="s")) == NO_HANDLE
    assert outcome(await say(world, HI, YES, MORE, YES, MORE, session_id="s")) == PULLED
    assert world.agent.acquired[0].session_key not in world.agent.acquired[0].message_digests
    assert outcome(await say(world, HI, YES, MORE)) == PULLED


async def test_requests_that_skip_the_cache_neither_claim_nor_are_known_again(
    world: World,
) -> None:
    await say(world, HI)
    skipping = await world.chat(messages=[HI, YES, MORE], prompt_logprobs=1)
    assert outcome(skipping) == ("RECOMPUTE", "UNSUPPORTED_REQUEST", "")
    assert outcome(await say(world, HI, YES, MORE, YES, MORE)) == PULLED
    assert len(world.agent.acquired) == 1


async def test_a_turn_that_failed_is_not_gone_on_from(world: World) -> None:
    world.decode.script.statuses = [400]
    await world.chat(messages=[HI])
    assert outcome(await say(world, HI, YES, MORE)) == NO_HANDLE


async def test_neither_log_nor_header_shows_a_prompt(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = {"role": "user", "content": "treasure under the oak"}
    first = await say(world, secret, answer={**YES, "content": "noted with the oak"})
    publish(world)
    second = await say(world, secret, {**YES, "content": "noted with the oak"}, MORE)
    assert outcome(second) == PULLED
    shown = capsys.readouterr().out + str(first.headers) + str(second.headers)
    assert world.decode.last.params["contraflow"]["session_key"] in shown
    assert "oak" not in shown
