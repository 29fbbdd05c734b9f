"""Sessions that are ended, over real handle tables."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import grpc
import pytest
from tests.support.fake_engine import Received
from tests.support.router_stub import router_stub
from tests.support.router_world import KEY, SECRET, SESSION, World, config_of
from tests.support.talk import HI, MORE, NEVER_PULLS, NO, YES, moved, talk_of
from tests.support.wait import until

from contraflow.core.handle import State
from contraflow.core.instructions import Pull
from contraflow.core.session import session_key
from contraflow.v1 import router_service_pb2 as pb

pytestmark = pytest.mark.integration

TENANTS = config_of('[tenants.red]\napi_keys = ["r"]\n[tenants.blue]\napi_keys = ["b"]\n')


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


@pytest.mark.parametrize("registered", [True, False])
async def test_ending_a_session_is_incomplete_until_its_engine_has_attached(
    registered: bool,
) -> None:
    async with talk_of() as talk:
        first = await talk.say(HI)
        if not registered:
            talk.world.replica._lose("d1")
        talk.owner.attached.clear()  # the agent has just started
        ended = await end(talk.world, SESSION["session_id"])
        assert (list(ended.released_handle_ids), ended.complete) == ([], False)
        talk.owner.attached.add("d1")
        again = await end(talk.world, SESSION["session_id"])
        assert (list(again.released_handle_ids), again.complete) == ([f"d1/{first}"], True)


async def test_ending_a_session_frees_what_it_can_while_another_engine_is_not_attached() -> None:
    async with talk_of() as talk, moved(talk):
        first = await talk.say(HI)
        talk.owner.attached.discard("d1")
        ended = await end(talk.world, SESSION["session_id"])
        assert (list(ended.released_handle_ids), ended.complete) == ([f"d2/{first}"], False)


async def test_ending_a_session_is_incomplete_while_the_view_is_not_current() -> None:
    async with talk_of() as talk:
        first = await talk.say(HI)
        talk.world.replica.forget_revision()
        talk.world.replica.begin()
        ended = await end(talk.world, SESSION["session_id"])
        assert (list(ended.released_handle_ids), ended.complete) == ([f"d1/{first}"], False)


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
