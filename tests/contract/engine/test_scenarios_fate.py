"""What becomes of a handle, and that its owner knows: kept, read once, claimed by many."""

from __future__ import annotations

import asyncio
import uuid

import grpc
import pytest
from tests.contract.engine.test_claims import granted, pulled, with_proof
from tests.support.cluster import Cluster

from contraflow.core.transfer_params import OURS
from contraflow.v1.handle_pb2 import HANDLE_STATE_RETAINED

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_scenario_04_turns_at_once_through_two_routers_read_one_handle_once(
    cluster: Cluster,
) -> None:
    session, prompt = cluster.session(), cluster.text(160)
    first = await cluster.turn(prompt, session, tokens=140)
    prompt += first.ids + cluster.text(40)
    for router in range(2):
        await cluster.until_planned(session, router)
    before = await cluster.counted()

    replies = await asyncio.gather(
        *(cluster.turn(prompt, session, router=n % 2) for n in range(12))
    )

    assert {reply.status for reply in replies} == {200}
    expected = await cluster.reference(prompt)
    assert all(reply.ids == expected for reply in replies)
    # The others compute, or find what the first has pulled in P's own cache.
    counted = await cluster.counted_since(before, 12 * len(prompt))
    assert counted.pulled == sum(reply.tokens("pulled") for reply in replies)
    assert counted.pulled <= 299


async def test_scenario_05_what_was_declined_as_too_small_is_kept_and_can_be_claimed_again(
    cluster: Cluster,
) -> None:
    session, salt = cluster.session(), uuid.uuid4().hex
    prompt, grant = await granted(cluster, salt, session)
    params = with_proof(grant)
    params[OURS] |= {"min_pull_tokens": 10_000}

    small = await cluster.leg(cluster.prefill, prompt, params, cache_salt=salt)
    await cluster.give_back(grant.handle.claim_id)
    again = await cluster.acquire(session)
    # P has computed the prompt by now, and holds everything.
    nothing_left, _ = await pulled(cluster, again, prompt, salt=salt)
    await cluster.give_back(again.handle.claim_id)

    assert small.body["kv_transfer_params"][OURS]["pull"]["outcome"] == "DECLINED_SMALL"
    assert nothing_left == "DECLINED_SMALL"
    assert again.handle.handle_id == grant.handle.handle_id
    (handle,) = await cluster.handles(session)
    assert (handle.handle_id, handle.state) == (grant.handle.handle_id, HANDLE_STATE_RETAINED)


async def test_scenario_05_what_was_read_is_gone_and_never_offered_again(
    cluster: Cluster,
) -> None:
    session, salt = cluster.session(), uuid.uuid4().hex
    prompt, grant = await granted(cluster, salt, session)

    outcome, _ = await pulled(cluster, grant, prompt, salt=salt)

    assert outcome == "PULLED"
    await cluster.until_handles(session, 0)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await cluster.acquire(session)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_scenario_10_two_sessions_that_share_a_long_beginning(cluster: Cluster) -> None:
    """P's own cache may know the beginning; D's blocks are offered to their session only."""
    system = cluster.text(320)
    prompts = {cluster.session(): system + cluster.text(20) for _ in range(2)}
    kept: dict[str, str] = {}
    for session, prompt in prompts.items():
        reply = await cluster.turn(prompt, session, tokens=100)
        assert (reply.report["decision"], reply.report["reason"]) == ("RECOMPUTE", "NO_HANDLE")
        assert reply.ids == await cluster.reference(prompt, 100)
        prompts[session] = prompt + reply.ids + cluster.text(40)
        (handle,) = await cluster.until_handles(session, 1)
        kept[session] = handle.handle_id
    assert reply.tokens("local") == 320

    for session, prompt in prompts.items():
        assert [one.handle_id for one in await cluster.handles(session)] == [kept[session]]
        reply = await cluster.turn(prompt, session)
        assert reply.report["outcome"] == "PULLED"
        assert reply.report["discarded"] == "0"
        assert reply.ids == await cluster.reference(prompt)
