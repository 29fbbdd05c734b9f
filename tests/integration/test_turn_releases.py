"""Handles that a turn has outlived, and sessions that are ended, over real handle tables."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import grpc
import msgspec
import pytest
from tests.support.fake_engine import FakeEngine, Received
from tests.support.owner import Owner, owned_world
from tests.support.router_stub import router_stub
from tests.support.router_world import SECRET, SESSION, Answer, World, config_of
from tests.support.wait import until

from contraflow.core.fleet import Role
from contraflow.core.handle import State
from contraflow.core.instructions import Pull
from contraflow.core.session import session_key
from contraflow.router.config import RouterConfig
from contraflow.v1 import router_service_pb2 as pb

pytestmark = pytest.mark.integration

Json = dict[str, Any]
HI: Json = {"role": "user", "content": "hi"}
MORE: Json = {"role": "user", "content": "go on"}
LEFT: Json = {"role": "user", "content": "left"}
RIGHT: Json = {"role": "user", "content": "right"}
YES: Json = {"role": "assistant", "content": "yes?"}
NO: Json = {"role": "assistant", "content": "no!"}
KEY = session_key(SECRET, "default", SESSION["session_id"])
NEVER_PULLS = msgspec.structs.replace(config_of(), recompute_threshold_tokens=1000)
TENANTS = config_of('[tenants.red]\napi_keys = ["r"]\n[tenants.blue]\napi_keys = ["b"]\n')
either = pytest.mark.parametrize("named", [True, False], ids=["named", "by_messages"])


@dataclass
class Talk:
    """Conversations over one world."""

    world: World
    owner: Owner

    async def say(self, *messages: Json, named: bool = True, **fields: Any) -> str:
        """A turn that goes well; its id."""
        return (await self.answer(*messages, named=named, **fields)).plan["turn"]

    async def answer(
        self, *messages: Json, named: bool = True, reply: Json = YES, **fields: Any
    ) -> Answer:
        self.world.decode.script.message = reply
        session = SESSION if named else {}
        answer = await self.world.chat(messages=messages, **{**session, **fields})
        assert answer.status == 200
        return answer

    def publish(self) -> None:
        self.owner.publish(self.world.replica)

    async def left(self, *turns: str) -> None:
        """In the end just these turns have handles."""
        await self.world.app.close()
        assert set(self.owner.handles()) == set(turns)


@asynccontextmanager
async def talk_of(config: RouterConfig | None = None) -> AsyncIterator[Talk]:
    async with owned_world(config) as (world, owner):
        yield Talk(world, owner)


@asynccontextmanager
async def moved(talk: Talk, **fields: Any) -> AsyncIterator[FakeEngine]:
    """d1 drains, and d2 is there."""
    world = talk.world
    async with FakeEngine("d2", Role.DECODE, agent_address=world.agent_address, **fields) as second:
        talk.owner.attach(second)
        world.know(replace(world.decode.engine, draining=True), second.engine)
        yield second


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
        await until(lambda: bool(talk.owner.release_calls), "a release was tried")
        assert talk.owner.handles()[first] is State.CLAIMED
        go_on.set()
        assert talk.owner.released == []
        await talk.left(await reader, other.plan["turn"])
        assert talk.owner.reads == [first]


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


# Ending a session.


async def end(world: World, session_id: str, key: str = "") -> pb.EndSessionResponse:
    metadata = (("authorization", f"Bearer {key}"),) if key else ()
    async with router_stub(world) as stub:
        request = pb.EndSessionRequest(session_id=session_id)
        return await stub.EndSession(request, timeout=30, metadata=metadata)


async def test_ending_a_session_frees_all_its_branches_wherever_they_are() -> None:
    async with talk_of(NEVER_PULLS) as talk, moved(talk):
        elsewhere = await talk.say(HI)
        talk.world.know(talk.world.decode.engine)
        talk.world.replica.engines["d2"] = replace(talk.world.replica.engines["d2"], draining=True)
        twice = []
        for reply in (YES, NO):
            talk.publish()
            twice.append(await talk.say(HI, reply=reply))
        other = await talk.say(HI, session_id="another")
        engines = {engine for engine in ("d1", "d2") if talk.owner.handles(engine)}
        assert engines == {"d1", "d2"}

        ended = await end(talk.world, SESSION["session_id"])

        assert ended.complete
        assert {one.partition("/")[2] for one in ended.released_handle_ids} == {*twice, elsewhere}
        assert set(talk.owner.handles()) == {other}
        assert talk.world.app.homes.by_key.get(KEY) is None
        talk.publish()
        again = await end(talk.world, SESSION["session_id"])
        assert (list(again.released_handle_ids), again.complete) == ([], True)
        assert (await talk.answer(HI, YES, MORE)).plan["reason"] == "NO_HANDLE"


async def test_ending_a_session_leaves_claims_alone() -> None:
    async with talk_of() as talk:
        first = await talk.say(HI)

        async def hold(received: Received) -> None:
            await asyncio.Event().wait()

        talk.world.prefill.script.before_answer = hold
        turn = asyncio.create_task(talk.say(HI, YES, MORE))
        await until(lambda: len(talk.world.prefill.received) == 2, "the claim is sent")
        ended = await end(talk.world, SESSION["session_id"])
        assert (list(ended.released_handle_ids), ended.complete) == ([], True)
        assert talk.owner.handles() == {first: State.CLAIMED}
        turn.cancel()


async def test_a_claim_that_comes_back_after_the_end_of_its_session_leaves_nothing() -> None:
    async with talk_of() as talk:
        await talk.say(HI)
        talk.publish()
        talk.world.prefill.script.pull = lambda received: Pull("DECLINED_SMALL", "d1")
        talk.world.decode.script.statuses = [400]  # it leaves no handle, and outlives none
        go_on = asyncio.Event()

        async def hold(received: Received) -> None:
            await go_on.wait()

        talk.world.prefill.script.before_answer = hold
        turn = asyncio.create_task(talk.world.chat(messages=[HI, YES, MORE], **SESSION))
        await until(lambda: len(talk.world.prefill.received) == 2, "the claim is sent")
        ended = await end(talk.world, SESSION["session_id"])
        assert list(ended.released_handle_ids) == []
        go_on.set()
        assert (await turn).status == 400
        await talk.left()
        assert len(talk.owner.returned) == 1


async def test_ending_a_session_says_if_an_agent_could_not_be_asked() -> None:
    async with talk_of() as talk:
        await talk.say(HI)
        await talk.world.stop_agent()
        assert not (await end(talk.world, SESSION["session_id"])).complete


async def test_ending_a_session_is_incomplete_while_an_engine_is_not_heard_of() -> None:
    async with talk_of() as talk:
        await talk.say(HI)
        talk.world.replica._lose("d1")
        await talk.world.stop_agent()
        assert not (await end(talk.world, SESSION["session_id"])).complete


async def test_scenario_10_only_the_tenant_ends_its_session() -> None:
    async with talk_of(TENANTS) as talk:
        headers = {"authorization": "Bearer r"}
        first = await talk.say(HI, headers=headers)
        [handle] = talk.owner.tables["d1"].live()
        strange = replace(handle, request_id="x", handle_id="d1/x", turn_id="x", tenant="blue")
        talk.owner.tables["d1"].retain(strange, lambda proof: False)
        for session_id in (SESSION["session_id"], session_key(SECRET, "red", "conversation-1")):
            assert not (await end(talk.world, session_id, "b")).released_handle_ids
        for key in ("", "x"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await end(talk.world, SESSION["session_id"], key)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert set(talk.owner.handles()) == {first, "x"}
        ended = await end(talk.world, SESSION["session_id"], "r")
        assert list(ended.released_handle_ids) == [f"d1/{first}"]


async def test_a_session_needs_a_name_to_be_ended() -> None:
    async with talk_of() as talk:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await end(talk.world, "")
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
