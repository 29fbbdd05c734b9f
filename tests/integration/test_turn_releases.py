"""Handles that a turn has outlived, over real handle tables."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.support.fake_engine import Received
from tests.support.router_world import SESSION
from tests.support.talk import HI, MORE, NEVER_PULLS, NO, YES, Json, elsewhere, moved, talk_of
from tests.support.wait import until

from contraflow.core.errors import HandleNotFound
from contraflow.core.handle import State
from contraflow.core.instructions import Pull

pytestmark = pytest.mark.integration

LEFT: Json = {"role": "user", "content": "left"}
RIGHT: Json = {"role": "user", "content": "right"}
either = pytest.mark.parametrize("named", [True, False], ids=["named", "by_messages"])


@either
async def test_scenario_28_a_conversation_that_moves_takes_its_handle_along(named: bool) -> None:
    async with talk_of() as talk:
        first = await talk.say(HI, named=named)
        talk.publish()
        async with moved(talk):
            second = await talk.answer(HI, YES, MORE, named=named)
            assert second.plan["decision"] == "PULL"
            assert second.plan["decode"] == "d2"
            assert talk.owner.reads == [first]
            await talk.left(second.plan["turn"])
            assert talk.owner.handles("d1") == {}
            assert talk.owner.list_calls == 0  # there is nothing to look for
            assert talk.owner.released == []


@either
async def test_scenario_28_a_conversation_that_moves_and_can_not_pull(named: bool) -> None:
    async with talk_of() as talk:
        first = await talk.say(HI, named=named)
        talk.publish()
        talk.world.know(replace(talk.world.prefill.engine, bidirectional=False))
        async with moved(talk):
            second = await talk.answer(HI, YES, MORE, named=named)
            assert second.plan["reason"] == "INCOMPATIBLE"
            await talk.left(second.plan["turn"])
            assert talk.owner.released == [first]
            value = talk.world.app.metrics.registry.get_sample_value(
                "contraflow_router_released_handles_total", {"why": "outlived"}
            )
            assert value == 1


@either
async def test_a_handle_that_is_not_worth_a_pull_goes_with_the_next_turn(named: bool) -> None:
    async with talk_of(NEVER_PULLS) as talk:
        first = await talk.say(HI, named=named)
        talk.publish()
        second = await talk.answer(HI, YES, MORE, named=named)
        assert second.plan["reason"] == "BELOW_THRESHOLD"
        await talk.left(second.plan["turn"])
        assert talk.owner.released == [first]


@either
@pytest.mark.parametrize("outcome", ["DECLINED_MISMATCH", "DECLINED_SMALL"])
async def test_a_handle_that_prefill_declined_goes_once_the_turn_has_its_own(
    named: bool, outcome: str
) -> None:
    async with talk_of() as talk:
        first = await talk.say(HI, named=named)
        talk.publish()
        talk.world.prefill.script.pull = lambda received: Pull(outcome, "d1")
        retain = talk.world.decode.script.before_answer
        assert retain is not None
        seen = []

        async def see(received: Received) -> None:
            await until(lambda: bool(talk.owner.returned), "the claim comes back")
            seen.append(talk.owner.handles())
            await retain(received)

        talk.world.decode.script.before_answer = see
        second = await talk.say(HI, YES, MORE, named=named)
        assert seen == [{first: State.RETAINED}]
        await talk.left(second)
        assert talk.owner.released == [first]


@either
async def test_a_turn_that_does_not_end_well_frees_nothing(named: bool) -> None:
    async with talk_of(NEVER_PULLS) as talk:
        first = await talk.say(HI, named=named)
        talk.publish()
        talk.world.decode.script.statuses = [400]
        session = SESSION if named else {}
        answer = await talk.world.chat(messages=[HI, YES, MORE], **session)
        assert answer.status == 400
        await talk.left(first)


@either
async def test_a_client_that_leaves_frees_nothing(named: bool) -> None:
    async with talk_of(NEVER_PULLS) as talk:
        first = await talk.say(HI, named=named)
        talk.publish()

        async def hold(received: Received) -> None:
            await asyncio.Event().wait()

        talk.world.decode.script.before_answer = hold
        turn = asyncio.create_task(talk.answer(HI, YES, MORE, named=named))
        await until(lambda: len(talk.world.decode.received) == 2, "decode runs")
        turn.cancel()
        await until(lambda: talk.world.decode.last.disconnected, "it is aborted")
        await talk.left(first)


async def test_a_turn_that_leaves_no_handle_frees_none() -> None:
    async with talk_of() as talk:
        first = await talk.say(HI)
        talk.publish()
        talk.world.decode.script.before_answer = None
        answer = await talk.answer(HI, YES, MORE, n=2)
        assert answer.plan["reason"] == "UNSUPPORTED_REQUEST"
        await talk.left(first)


async def test_scenario_11_a_handle_that_two_branches_may_mean_stays() -> None:
    async with talk_of(NEVER_PULLS) as talk:
        # Of one session: the same question was answered twice.
        twice = []
        for reply in (YES, NO):
            twice.append(await talk.say(HI, reply=reply))
            talk.publish()
        third = await talk.say(HI, YES, MORE)
        await talk.left(*twice, third)


async def test_scenario_10_a_handle_that_two_conversations_may_mean_stays() -> None:
    async with talk_of(NEVER_PULLS) as talk:
        twice = [await talk.say(HI, named=False) for _ in range(2)]
        talk.publish()
        # This reply did not come through here.
        third = await talk.answer(HI, NO, MORE, named=False)
        assert third.plan["reason"] == "AMBIGUOUS_SESSION"
        await talk.left(*twice, third.plan["turn"])


async def test_scenario_10_one_that_was_ambiguous_stays_when_only_one_is_left() -> None:
    async with talk_of() as talk, elsewhere(talk) as other:
        yes, no = [await talk.say(HI, named=False, reply=reply) for reply in (YES, NO)]
        other.publish()
        retain = talk.world.decode.script.before_answer
        assert retain is not None

        async def end_one(received: Received) -> None:
            talk.owner.tables["d1"].end(yes, State.EXPIRED)
            await retain(received)

        talk.world.decode.script.before_answer = end_one
        third = await other.answer(HI, YES, MORE, named=False)
        assert third.plan["reason"] == "AMBIGUOUS_SESSION"
        await other.left(no, third.plan["turn"])


@pytest.mark.parametrize("proven", [12, 298, 299])
async def test_scenario_10_only_a_whole_proof_tells_whose_handle_it_is_where_no_reply_was_seen(
    proven: int,
) -> None:
    async with talk_of() as talk, elsewhere(talk) as other:
        gone, stays = [await talk.say(HI, named=False, reply=reply) for reply in (YES, NO)]
        talk.owner.tables["d1"].end(gone, State.EXPIRED)
        other.publish()
        talk.world.prefill.script.pull = lambda received: Pull(
            "DECLINED_SMALL", "d1", offered_tokens=299, proven_tokens=proven
        )
        third = await other.answer(HI, YES, MORE, named=False)
        assert third.plan["outcome"] == "DECLINED_SMALL"
        whole = proven == 299
        await other.left(*([] if whole else [stays]), third.plan["turn"])
        assert talk.owner.released == ([stays] if whole else [])


@pytest.mark.parametrize("reason", ["BELOW_THRESHOLD", "INCOMPATIBLE", "ACQUIRE_DENIED"])
async def test_scenario_10_a_handle_that_was_not_compared_stays_where_no_reply_was_seen(
    reason: str,
) -> None:
    config = NEVER_PULLS if reason == "BELOW_THRESHOLD" else None
    async with talk_of() as talk, elsewhere(talk, config) as other:
        gone, stays = [await talk.say(HI, named=False, reply=reply) for reply in (YES, NO)]
        talk.owner.tables["d1"].end(gone, State.EXPIRED)
        other.publish()
        if reason == "INCOMPATIBLE":
            talk.world.know(replace(talk.world.prefill.engine, bidirectional=False))
        elif reason == "ACQUIRE_DENIED":
            talk.owner.denial = HandleNotFound("it has come only now")
        third = await other.answer(HI, YES, MORE, named=False)
        assert third.plan["reason"] == reason
        await other.left(stays, third.plan["turn"])


async def test_scenario_10_another_handle_than_the_one_that_was_proven_stays() -> None:
    async with talk_of() as talk, elsewhere(talk) as other:
        first = await talk.say(HI, named=False)
        other.publish()
        talk.world.prefill.script.pull = lambda received: Pull(
            "DECLINED_SMALL", "d1", offered_tokens=299, proven_tokens=299
        )
        retain = talk.world.decode.script.before_answer
        assert retain is not None
        strange: list[str] = []

        async def another_begins(received: Received) -> None:
            if not strange:
                strange.append("")
                await until(lambda: bool(talk.owner.returned), "the claim comes back")
                talk.owner.tables["d1"].end(first, State.EXPIRED)
                strange[0] = await talk.say(HI, named=False, reply=NO)
            await retain(received)

        talk.world.decode.script.before_answer = another_begins
        third = await other.say(HI, YES, MORE, named=False)
        await other.left(*strange, third)


async def test_scenario_10_the_reply_tells_whose_handle_goes() -> None:
    async with talk_of() as talk:
        talk.world.know(replace(talk.world.prefill.engine, bidirectional=False))
        yes, no = [await talk.say(HI, named=False, reply=reply) for reply in (YES, NO)]
        talk.publish()
        third = await talk.say(HI, YES, MORE, named=False)
        await talk.left(no, third)
        assert talk.owner.released == [yes]


async def test_scenario_11_another_branch_of_the_session_keeps_its_handle() -> None:
    async with talk_of(NEVER_PULLS) as talk:
        await talk.say(HI)
        talk.publish()
        left, right = [await talk.say(HI, YES, way) for way in (LEFT, RIGHT)]
        talk.publish()
        next_left = await talk.say(HI, YES, LEFT, YES, MORE)
        await talk.left(right, next_left)
        assert left in talk.owner.released


async def test_scenario_11_a_handle_that_another_fork_has_claimed_ends_by_its_claim() -> None:
    async with talk_of() as talk:
        first = await talk.say(HI)
        talk.publish()
        read = talk.world.prefill.script.before_answer
        assert read is not None
        go_on = asyncio.Event()

        async def hold_reader(received: Received) -> None:
            if "claim_id" in received.params["contraflow"]:
                await go_on.wait()
            await read(received)

        talk.world.prefill.script.before_answer = hold_reader
        reader = asyncio.create_task(talk.say(HI, YES, LEFT))
        await until(lambda: len(talk.world.prefill.received) == 2, "the claim is sent")
        other = await talk.answer(HI, YES, RIGHT)
        assert other.plan["denial"] == "HANDLE_CLAIMED"
        await until(lambda: bool(talk.owner.list_calls), "it was looked for")
        assert talk.owner.handles()[first] is State.CLAIMED
        go_on.set()
        await talk.left(await reader, other.plan["turn"])
        assert talk.owner.reads == [first]
        assert talk.owner.release_calls == []


async def test_a_session_without_messages_tells_no_branches_apart_and_frees_nothing() -> None:
    async with talk_of(NEVER_PULLS) as talk:
        fields: Json = {"path": "/v1/completions", "prompt": [1, 2, 3], **SESSION}
        turns = []
        for _ in range(2):
            turns.append((await talk.world.chat(**fields)).plan["turn"])
            talk.publish()
        await talk.left(*turns)


async def test_an_agent_that_can_not_be_asked_costs_no_turn() -> None:
    async with talk_of(NEVER_PULLS) as talk:
        first = await talk.say(HI)
        talk.publish()
        await talk.world.stop_agent()
        second = await talk.say(HI, YES, MORE)
        await talk.left(first, second)


async def test_no_turn_waits_for_a_release() -> None:
    async with talk_of(NEVER_PULLS) as talk:
        first = await talk.say(HI)
        talk.publish()
        talk.owner.hold_lists = asyncio.Event()
        second = await talk.say(HI, YES, MORE)
        await until(lambda: talk.owner.list_calls == 1, "the agent is asked, and hangs")
        assert set(talk.owner.handles()) == {first, second}
        talk.owner.hold_lists.set()
        await talk.left(second)
