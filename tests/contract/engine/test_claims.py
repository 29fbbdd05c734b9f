"""Claims and leases: one read, no read after the end, nothing pinned for ever."""

from __future__ import annotations

import asyncio
import uuid

import grpc
import pytest
from tests.support.cluster import Cluster, Reply

from contraflow.core.instructions import Instructions
from contraflow.core.transfer_params import (
    HOLD_UNTIL,
    OURS,
    Params,
    for_plain_prefill,
    for_pulling_prefill,
)
from contraflow.v1 import agent_service_pb2 as agent_pb
from contraflow.v1.handle_pb2 import HANDLE_STATE_RETAINED
from contraflow.wire.convert import proof_from_proto
from contraflow.wire.params import params_from_proto

pytestmark = pytest.mark.asyncio(loop_scope="session")


def with_proof(grant: agent_pb.AcquireHandleResponse, **changed: object) -> Params:
    """What a router would send to P for a grant, with some parameters changed."""
    proof = proof_from_proto(grant.proof)
    params = for_pulling_prefill({**params_from_proto(grant.transfer_params), **changed})
    return {**params, OURS: Instructions(decision="PULL", proof=proof).to_json()}


async def granted(
    cluster: Cluster, salt: str, session: str | None = None
) -> tuple[list[int], agent_pb.AcquireHandleResponse]:
    """The next prompt of a session whose handle was claimed past the router.

    ``salt`` goes to both legs, which are sent straight to the engines.
    """
    session, prompt = session or cluster.session(), cluster.text(200)
    ours = Instructions(tenant="default", session_key=cluster.key(session)).to_json()
    prefilled = await cluster.leg(
        cluster.prefill, prompt, {**for_plain_prefill(), OURS: ours}, cache_salt=salt
    )
    params = prefilled.body["kv_transfer_params"]
    params[OURS] = {**ours, "tip": params[OURS]["tip"]}
    decoded = await cluster.leg(cluster.decode, prompt, params, tokens=80, cache_salt=salt)
    return prompt + decoded.ids + cluster.text(40), await cluster.acquire(session)


async def pulled(
    cluster: Cluster, grant: agent_pb.AcquireHandleResponse, prompt: list[int], **changed: object
) -> tuple[str, Reply]:
    """Outcome and answer of a prefill with a grant; ``salt`` as the session's legs had it."""
    salt = changed.pop("salt")
    params = with_proof(grant, **changed)
    reply = await cluster.leg(cluster.prefill, prompt, params, cache_salt=salt)
    return reply.body["kv_transfer_params"][OURS]["pull"]["outcome"], reply


async def first_token(cluster: Cluster, prompt: list[int]) -> list[int]:
    return await cluster.reference(prompt, 1)


async def test_a_grant_past_the_router_is_pulled(cluster: Cluster) -> None:
    salt = uuid.uuid4().hex
    prompt, grant = await granted(cluster, salt)

    outcome, reply = await pulled(cluster, grant, prompt, salt=salt)

    assert outcome == "PULLED"
    assert reply.ids == await first_token(cluster, prompt)


async def test_scenario_04_one_of_many_concurrent_claims_is_granted(cluster: Cluster) -> None:
    session = cluster.session()
    await cluster.turn(cluster.text(160), session)

    answers = await asyncio.gather(
        *(cluster.acquire(session) for _ in range(20)), return_exceptions=True
    )

    grants = [one for one in answers if isinstance(one, agent_pb.AcquireHandleResponse)]
    denials = [one for one in answers if isinstance(one, grpc.aio.AioRpcError)]
    assert (len(grants), len(denials)) == (1, 19)
    assert {one.code() for one in denials} == {grpc.StatusCode.FAILED_PRECONDITION}
    await cluster.give_back(grants[0].handle.claim_id)


async def test_a_turn_whose_handle_is_claimed_recomputes(cluster: Cluster) -> None:
    session, prompt = cluster.session(), cluster.text(160)
    first = await cluster.turn(prompt, session)
    prompt += first.ids + cluster.text(40)
    grant = await cluster.acquire(session)

    second = await cluster.turn(prompt, session)

    assert second.report["decision"] == "RECOMPUTE"
    assert second.report["denial"] == "HANDLE_CLAIMED"
    assert second.ids == await cluster.reference(prompt)
    await cluster.give_back(grant.handle.claim_id)


async def test_a_returned_claim_can_be_claimed_again(cluster: Cluster) -> None:
    session = cluster.session()
    await cluster.turn(cluster.text(160), session)
    grant = await cluster.acquire(session)

    await cluster.give_back(grant.handle.claim_id)
    again = await cluster.acquire(session)

    assert again.handle.handle_id == grant.handle.handle_id
    await cluster.give_back(again.handle.claim_id)


async def test_scenario_10_another_tenant_is_refused_by_the_owner(cluster: Cluster) -> None:
    session = cluster.session()
    await cluster.turn(cluster.text(160), session)

    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await cluster.acquire(session, tenant="somebody-else")

    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_scenario_03_a_read_after_start_by_is_not_started_and_recomputed(
    cluster: Cluster,
) -> None:
    salt = uuid.uuid4().hex
    prompt, grant = await granted(cluster, salt)
    granted_until = grant.transfer_params.remote_blocks_expiry_time

    outcome, reply = await pulled(
        cluster, grant, prompt, salt=salt, remote_blocks_expiry_time=granted_until - 1000
    )

    assert outcome == "FAILED"
    assert reply.ids == await first_token(cluster, prompt)


async def test_scenario_03_a_read_that_ends_after_its_hold_is_failed_and_recomputed(
    cluster: Cluster,
) -> None:
    salt = uuid.uuid4().hex
    prompt, grant = await granted(cluster, salt)
    hold_until = params_from_proto(grant.transfer_params)[HOLD_UNTIL]

    outcome, reply = await pulled(
        cluster, grant, prompt, salt=salt, **{HOLD_UNTIL: hold_until - 1000}
    )

    assert outcome == "FAILED"
    assert reply.ids == await first_token(cluster, prompt)


async def test_a_pull_from_an_engine_that_is_gone_is_recomputed(cluster: Cluster) -> None:
    salt = uuid.uuid4().hex
    prompt, grant = await granted(cluster, salt)

    outcome, reply = await pulled(
        cluster, grant, prompt, salt=salt, remote_engine_id="gone", remote_port=9
    )

    assert outcome == "FAILED"
    assert reply.ids == await first_token(cluster, prompt)


async def test_a_pull_without_proof_is_declined_and_the_handle_kept(cluster: Cluster) -> None:
    salt = uuid.uuid4().hex
    prompt, grant = await granted(cluster, salt)
    params = with_proof(grant)
    unproven = {**params, OURS: Instructions(decision="PULL").to_json()}

    declined = await cluster.leg(cluster.prefill, prompt, unproven, cache_salt=salt)
    outcome, reply = await pulled(cluster, grant, prompt, salt=salt)

    report = declined.body["kv_transfer_params"][OURS]["pull"]
    assert report["outcome"] == "DECLINED_NO_PROOF"
    # P holds the prompt by now: the handle is still there, there is just nothing left to pull.
    assert outcome == "DECLINED_SMALL"
    assert declined.ids == reply.ids == await first_token(cluster, prompt)


async def test_scenario_30_decode_refuses_blocks_of_another_prompt(cluster: Cluster) -> None:
    """Template drift between the legs: D gets P's blocks for a prompt that is not its own."""
    prompt, other = cluster.text(200), cluster.text(200)
    ours = Instructions(tenant="default").to_json()
    prefilled = await cluster.leg(cluster.prefill, prompt, {**for_plain_prefill(), OURS: ours})
    params = prefilled.body["kv_transfer_params"]

    decoded = await cluster.leg(cluster.decode, other, params, tokens=20)

    assert decoded.ids == await cluster.reference(other, 20)


async def test_released_blocks_are_free(cluster: Cluster) -> None:
    session = cluster.session()
    await cluster.turn(cluster.text(2000), session, tokens=10)
    handle = (await cluster.until_handles(session, 1))[0]
    assert handle.state == HANDLE_STATE_RETAINED
    pinned = handle.num_blocks / 512

    before = await cluster.pinned()
    assert await cluster.release(handle.handle_id) == [handle.handle_id]

    await cluster.until_pinned_below(before - pinned / 2)
    assert await cluster.handles(session) == []
    assert await cluster.release(handle.handle_id) == []


async def test_scenario_24_a_pool_full_of_idle_conversations_starves_nobody(
    cluster: Cluster,
) -> None:
    """Each turn retains 24 of 512 blocks; the oldest handles yield, the newest stay. The long
    prompt takes 94, more than are free, and goes to D in one read; P serves after it too."""
    sessions = [cluster.session() for _ in range(30)]

    async with asyncio.timeout(60):
        replies = [await cluster.turn(cluster.text(720), one, tokens=40) for one in sessions]
        replies += [await cluster.turn(cluster.text(size), "", tokens=40) for size in (3000, 160)]

    assert {reply.status for reply in replies} == {200}
    assert await cluster.handles(sessions[0]) == []
    assert len(await cluster.handles(sessions[-1])) == 1
    for session in sessions:
        await cluster.release(*(handle.handle_id for handle in await cluster.handles(session)))
