"""Claims through a real agent over a real unix socket; the engine's side has a real table."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import grpc
import pytest
from tests.support.fake_engine_link import FakeEngineLink, engine, session_key
from tests.support.running_agent import RunningAgent, denied, eventually, running_agent
from tests.support.wait import until

from contraflow.core.errors import EngineIncarnationStale, Reason
from contraflow.core.handle import State
from contraflow.v1 import agent_service_pb2 as pb
from contraflow.v1 import handle_pb2
from contraflow.wire.convert import seconds
from contraflow.wire.params import params_from_proto

pytestmark = pytest.mark.integration


async def known(agent: RunningAgent, *handle_ids: str) -> None:
    async def as_expected() -> bool:
        return await agent.handles() == sorted(handle_ids)

    await eventually(as_expected, f"the agent knows {handle_ids}")


async def detached(agent: RunningAgent) -> None:
    async def as_expected() -> bool:
        return not await agent.engines()

    await eventually(as_expected, "no engine is attached")


async def test_claim_give_back_and_claim_again() -> None:
    decode = FakeEngineLink(engine())
    handle = decode.retain("chat")
    async with running_agent() as agent, decode.attached(agent.link):
        grant = await agent.acquire("c1", "chat")
        assert grant.handle.handle_id == handle.handle_id
        assert grant.handle.state == handle_pb2.HANDLE_STATE_CLAIMED
        assert params_from_proto(grant.transfer_params) == handle.params
        assert grant.proof.num_tokens == handle.num_tokens
        assert 0 < seconds(grant.start_by) <= 60
        assert seconds(grant.hold_until) == pytest.approx(seconds(grant.start_by) + 10)

        assert await denied(agent.acquire("c2", "chat")) is Reason.HANDLE_CLAIMED
        await agent.give_back("c1")
        assert decode.state_of(handle) is State.RETAINED
        assert await denied(agent.give_back("c1")) is Reason.CLAIM_NOT_FOUND
        assert (await agent.acquire("c2", "chat")).handle.claim_id == "c2"


async def test_the_same_claim_id_gets_the_same_grant_with_no_more_time() -> None:
    decode = FakeEngineLink(engine())
    decode.retain("chat")
    async with running_agent() as agent, decode.attached(agent.link):
        first = await agent.acquire("c1", "chat", start_by=100)
        again = await agent.acquire("c1", "chat", start_by=100)
        assert again.handle.handle_id == first.handle.handle_id
        assert seconds(again.start_by) < seconds(first.start_by)
        assert seconds(again.hold_until) < seconds(first.hold_until)


async def test_the_owner_picks_the_newest_handle_and_guards_tenants() -> None:
    decode = FakeEngineLink(engine())
    decode.retain("chat")
    async with running_agent() as agent, decode.attached(agent.link):
        newest = decode.retain("chat", tokens=80)
        assert await denied(agent.acquire("c1", "chat", tenant="evil")) is Reason.TENANT_MISMATCH
        assert await denied(agent.acquire("c1", "other")) is Reason.HANDLE_NOT_FOUND
        assert await denied(agent.acquire("c1", "chat", start_by=900)) is Reason.LEASE_TOO_SHORT
        assert (await agent.acquire("c1", "chat")).handle.handle_id == newest.handle_id


async def test_a_silent_engine_costs_the_deadline_and_its_late_grant_is_given_back() -> None:
    decode = FakeEngineLink(engine())
    handle = decode.retain("chat")
    async with running_agent(acquire_timeout=0.05) as agent, decode.attached(agent.link):
        decode.hold_answers()
        call = agent.acquire("c1", "chat", timeout=None)
        assert await denied(call) is Reason.ENGINE_UNRESPONSIVE
        await until(lambda: decode.state_of(handle) is State.CLAIMED, "the engine has claimed")
        decode.give_answers()
        await until(lambda: decode.state_of(handle) is State.RETAINED, "the claim is given back")
        assert decode.orders == ["acquire", "return_order"]


async def test_a_router_that_leaves_leaves_no_claim_behind() -> None:
    decode = FakeEngineLink(engine())
    handle = decode.retain("chat")
    async with running_agent() as agent, decode.attached(agent.link):
        decode.hold_answers()
        call = asyncio.create_task(agent.acquire("c1", "chat"))
        await until(lambda: decode.state_of(handle) is State.CLAIMED, "the engine has claimed")
        call.cancel()
        # The call's end reaches the agent before its answer does, or after: both must hold.
        decode.give_answers()
        await until(
            lambda: (
                decode.state_of(handle) is State.RETAINED
                or decode.orders == ["acquire", "return_order"]
            ),
            "the claim is given back",
        )


async def test_the_callers_own_deadline_counts() -> None:
    decode = FakeEngineLink(engine())
    handle = decode.retain("chat")
    async with running_agent(acquire_timeout=600) as agent, decode.attached(agent.link):
        decode.hold_answers()
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await agent.acquire("c1", "chat", timeout=0.2)
        assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(
            lambda: agent.acquires("ENGINE_UNRESPONSIVE") + agent.acquires("CANCELLED") == 1,
            "the agent has given up",
        )
        decode.give_answers()
        await until(lambda: "return_order" in decode.orders, "the claim is given back")
        await until(lambda: decode.state_of(handle) is State.RETAINED, "the handle is kept")


async def test_a_retry_with_the_same_claim_id_keeps_the_claim_that_came_late() -> None:
    decode = FakeEngineLink(engine())
    handle = decode.retain("chat")
    async with running_agent() as agent, decode.attached(agent.link):
        decode.hold_answers()
        with pytest.raises(grpc.aio.AioRpcError):
            await agent.acquire("c1", "chat", timeout=0.1)
        retry = asyncio.create_task(agent.acquire("c1", "chat", timeout=None))
        decode.give_answers()
        # Either the retry was there when the late grant came, or that was given back first.
        assert (await retry).handle.claim_id == "c1"
        assert decode.state_of(handle) is State.CLAIMED


async def test_claims_outlive_the_link() -> None:
    decode = FakeEngineLink(engine())
    handle = decode.retain("chat")
    async with running_agent() as agent:
        async with decode.attached(agent.link):
            await agent.acquire("c1", "chat")
        await detached(agent)
        assert await denied(agent.acquire("c2", "chat")) is Reason.ENGINE_NOT_ATTACHED
        async with decode.attached(agent.link):
            assert await denied(agent.acquire("c2", "chat")) is Reason.HANDLE_CLAIMED
            assert (await agent.acquire("c1", "chat")).handle.handle_id == handle.handle_id
            await agent.give_back("c1")
            assert decode.state_of(handle) is State.RETAINED
        assert decode.epochs == sorted(set(decode.epochs))


async def test_a_claim_whose_answer_was_lost_with_the_link_is_given_back_on_the_next() -> None:
    decode = FakeEngineLink(engine())
    handle = decode.retain("chat")
    async with running_agent() as agent:
        async with decode.attached(agent.link):
            decode.hold_answers()
            call = asyncio.create_task(denied(agent.acquire("c1", "chat")))
            await until(lambda: decode.state_of(handle) is State.CLAIMED, "the engine has claimed")
        assert await call is Reason.ENGINE_NOT_ATTACHED
        decode.give_answers()
        async with decode.attached(agent.link):
            await until(lambda: decode.state_of(handle) is State.RETAINED, "it is given back")


async def test_scenario_31_a_restarted_agent_knows_the_claims_that_live() -> None:
    decode = FakeEngineLink(engine())
    handle = decode.retain("chat")
    async with AsyncExitStack() as stack:
        async with running_agent() as agent:
            await decode.attach(agent.link)
            first = await agent.acquire("c1", "chat")
        await decode.ended.get()
        agent = await stack.enter_async_context(running_agent())
        await stack.enter_async_context(decode.attached(agent.link))
        assert decode.epochs[1] > decode.epochs[0]
        (listed,) = (await agent.stub.ListHandles(pb.ListHandlesRequest())).handles
        assert listed.claim_id == "c1"
        assert await denied(agent.acquire("c2", "chat")) is Reason.HANDLE_CLAIMED
        again = await agent.acquire("c1", "chat")
        assert again.handle.handle_id == handle.handle_id
        assert seconds(again.start_by) < seconds(first.start_by)
        assert decode.state_of(handle) is State.CLAIMED
        await agent.give_back("c1")
        assert (await agent.acquire("c2", "chat")).handle.handle_id == handle.handle_id


async def test_scenario_31_the_later_of_two_links_of_one_engine_counts() -> None:
    decode = FakeEngineLink(engine())
    handle = decode.retain("chat")
    async with running_agent() as agent, decode.attached(agent.link):
        older_ended = decode.ended
        async with decode.attached(agent.link):
            error = await older_ended.get()
            assert isinstance(error, EngineIncarnationStale)
            (attached,) = await agent.engines()
            assert attached.attach_epoch == decode.epochs[-1] > decode.epochs[0]
            assert (await agent.acquire("c1", "chat")).handle.handle_id == handle.handle_id


async def test_scenario_09_a_replaced_incarnation_is_told_from_an_unknown_engine() -> None:
    old, new = FakeEngineLink(engine("old")), FakeEngineLink(engine("new"))
    rank = FakeEngineLink(engine("rank", dp_rank=1))
    async with running_agent() as agent:
        async with old.attached(agent.link), rank.attached(agent.link):
            pass
        async with new.attached(agent.link):
            stale = denied(agent.acquire("c", "chat", engine_id="old"))
            assert await stale is Reason.ENGINE_INCARNATION_STALE
            gone = denied(agent.acquire("c", "chat", engine_id="rank"))
            assert await gone is Reason.ENGINE_NOT_ATTACHED
            never = denied(agent.acquire("c", "chat", engine_id="never"))
            assert await never is Reason.ENGINE_NOT_ATTACHED


async def test_a_reused_engine_id_is_served_but_never_pulled() -> None:
    first = FakeEngineLink(engine(boot_nonce="one"))
    second = FakeEngineLink(engine(boot_nonce="two"))
    first.retain("chat")
    kept = second.retain("chat")
    async with running_agent() as agent, first.attached(agent.link):
        async with second.attached(agent.link):
            assert len(await agent.engines()) == 2
            assert await denied(agent.acquire("c1", "chat")) is Reason.ENGINE_ID_REUSED
        assert await denied(agent.acquire("c1", "chat")) is Reason.ENGINE_ID_REUSED
        assert second.state_of(kept) is State.RETAINED


async def test_release_frees_what_is_retained_and_leaves_claims_alone() -> None:
    decode = FakeEngineLink(engine())
    free, claimed = decode.retain("free"), decode.retain("claimed")
    async with running_agent() as agent, decode.attached(agent.link):
        await agent.acquire("c1", "claimed")
        ids = [free.handle_id, claimed.handle_id, "decode-1/gone", free.handle_id]
        released = await agent.stub.ReleaseHandles(pb.ReleaseHandlesRequest(handle_ids=ids))
        assert released.released_handle_ids == [free.handle_id]
        await known(agent, claimed.handle_id)
        again = await agent.stub.ReleaseHandles(pb.ReleaseHandlesRequest(handle_ids=ids))
        assert not again.released_handle_ids
        ids = [claimed.handle_id, "elsewhere/1"]
        call = agent.stub.ReleaseHandles(pb.ReleaseHandlesRequest(handle_ids=ids))
        assert await denied(call) is Reason.ENGINE_NOT_ATTACHED


async def test_handles_are_listed_in_pages_and_by_session() -> None:
    one, two = FakeEngineLink(engine("a")), FakeEngineLink(engine("b", dp_rank=1))
    ids = sorted(link.retain(f"s{i}").handle_id for link in (one, two) for i in range(3))
    async with running_agent() as agent, one.attached(agent.link), two.attached(agent.link):
        listed: list[str] = []
        token = ""
        while True:
            request = pb.ListHandlesRequest(page_size=4, page_token=token)
            page = await agent.stub.ListHandles(request)
            assert len(page.handles) <= 4
            listed += [handle.handle_id for handle in page.handles]
            if not (token := page.next_page_token):
                break
        assert listed == ids
        request = pb.ListHandlesRequest(session_key=session_key("s1"))
        of_session = (await agent.stub.ListHandles(request)).handles
        assert [handle.session_key for handle in of_session] == [session_key("s1")] * 2


async def test_a_list_names_the_engines_whose_handles_are_known() -> None:
    one, two = FakeEngineLink(engine("a")), FakeEngineLink(engine("b", dp_rank=1))
    one.retain("s1")
    request = pb.ListHandlesRequest(session_key=session_key("s1"))
    async with running_agent() as agent, two.attached(agent.link):
        before = await agent.stub.ListHandles(request)
        assert (list(before.handles), list(before.engine_ids)) == ([], ["b"])
        async with one.attached(agent.link):
            listed = await agent.stub.ListHandles(request)
            assert len(listed.handles) == 1
            assert listed.engine_ids == ["a", "b"]


async def test_ended_handles_and_pull_reports_are_heard() -> None:
    decode = FakeEngineLink(engine())
    read = decode.retain("read")
    async with running_agent() as agent, decode.attached(agent.link):
        kept = decode.retain("kept")
        decode.end(read, State.READ)
        decode.report(handle_pb2.PULL_OUTCOME_PULLED, pulled_tokens=640)
        decode.report(handle_pb2.PULL_OUTCOME_DECLINED_SMALL)
        decode.report(handle_pb2.PULL_OUTCOME_PULLED, pulled_tokens=64)
        await known(agent, kept.handle_id)

        async def counted_all() -> bool:
            return sum((await agent.engines())[0].pulls.values()) == 3

        await eventually(counted_all, "all reports are counted")
        (attached,) = await agent.engines()
        assert dict(attached.pulls) == {"PULLED": 2, "DECLINED_SMALL": 1}
        assert attached.retained_handles == 1
        assert attached.engine.agent_address == "agent.test:7000"
        counted = agent.registry.get_sample_value
        assert counted("contraflow_agent_pulls_total", {"outcome": "PULLED"}) == 2
        assert counted("contraflow_agent_pull_tokens_total", {"kind": "pulled"}) == 704
        assert counted("contraflow_agent_engines") == 1
        assert counted("contraflow_agent_handles", {"state": "RETAINED"}) == 1
