"""An engine does with a handle what it is told, whatever vLLM's own threshold of 64 says."""

from __future__ import annotations

import uuid
from typing import Any

import grpc
import pytest
from tests.contract.engine.test_claims import first_token, granted, with_proof
from tests.support.cluster import Cluster, Reply

from contraflow.core.transfer_params import OURS
from contraflow.v1 import agent_service_pb2 as agent_pb
from contraflow.v1.handle_pb2 import HANDLE_STATE_RETAINED

pytestmark = pytest.mark.asyncio(loop_scope="session")

BLOCK = 32
HELD, IN_CACHE = 279, 192
"""Tokens of the handles that ``granted`` leaves, and of these in P's own cache."""


async def told(
    cluster: Cluster,
    grant: agent_pb.AcquireHandleResponse,
    prompt: list[int],
    salt: str,
    **use: Any,
) -> tuple[dict[str, Any], Reply]:
    """P's report and its answer to a leg with a handle that says what to do with it."""
    params = with_proof(grant)
    params[OURS] |= use
    reply = await cluster.leg(cluster.prefill, prompt, params, cache_salt=salt)
    report: dict[str, Any] = reply.body["kv_transfer_params"][OURS]["pull"]
    return report, reply


async def test_a_handle_that_is_not_wanted_is_kept_for_the_next_claim(cluster: Cluster) -> None:
    session, salt = cluster.session(), uuid.uuid4().hex
    prompt, grant = await granted(cluster, salt, session)
    # Another continuation, so that P is left with something to pull.
    other = prompt[:210] + cluster.text(40)

    report, reply = await told(cluster, grant, other, salt, decision="RECOMPUTE")
    await cluster.give_back(grant.handle.claim_id)
    (kept,) = await cluster.handles(session)
    again = await cluster.acquire(session)
    pulled, second = await told(cluster, again, prompt, salt)

    assert (report["outcome"], report["proven_tokens"]) == ("DECLINED_UNWANTED", IN_CACHE)
    assert report["pulled_tokens"] == report["bytes"] == 0
    assert reply.ids == await first_token(cluster, other)
    assert (kept.handle_id, kept.state) == (grant.handle.handle_id, HANDLE_STATE_RETAINED)
    assert again.handle.handle_id == kept.handle_id
    assert (pulled["outcome"], pulled["pulled_tokens"]) == ("PULLED", HELD - IN_CACHE)
    assert second.ids == await first_token(cluster, prompt)
    await cluster.until_handles(session, 0)


async def test_a_handle_that_is_let_go_with_its_claim_is_freed_unread(cluster: Cluster) -> None:
    session, salt = cluster.session(), uuid.uuid4().hex
    prompt, grant = await granted(cluster, salt, session)

    async with cluster.last_state(grant.handle) as ended:
        report, reply = await told(cluster, grant, prompt, salt, decision="RECOMPUTE")
        assert await cluster.release(grant.handle.handle_id) == []  # its claim comes first
        await cluster.give_back(grant.handle.claim_id)
        assert await ended == "RELEASED"

    assert (report["outcome"], report["proven_tokens"]) == ("DECLINED_UNWANTED", HELD)
    assert reply.ids == await first_token(cluster, prompt)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await cluster.acquire(session)
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("blocks", [7, 8, 9, 20])
async def test_just_the_blocks_that_are_wanted_are_pulled(cluster: Cluster, blocks: int) -> None:
    session, salt = cluster.session(), uuid.uuid4().hex
    prompt, grant = await granted(cluster, salt, session)

    report, reply = await told(cluster, grant, prompt, salt, pull_blocks=blocks)

    wanted = min(blocks * BLOCK, HELD)
    assert (report["outcome"], report["proven_tokens"]) == ("PULLED", HELD)
    assert (report["local_tokens"], report["pulled_tokens"]) == (IN_CACHE, wanted - IN_CACHE)
    assert report["computed_tokens"] == len(prompt) - wanted
    assert reply.ids == await first_token(cluster, prompt)
    # What was not read went with what was.
    await cluster.until_handles(session, 0)


async def test_blocks_that_p_has_itself_are_not_pulled_and_the_handle_is_kept(
    cluster: Cluster,
) -> None:
    session, salt = cluster.session(), uuid.uuid4().hex
    prompt, grant = await granted(cluster, salt, session)

    report, reply = await told(cluster, grant, prompt, salt, pull_blocks=IN_CACHE // BLOCK)
    await cluster.give_back(grant.handle.claim_id)

    assert (report["outcome"], report["pulled_tokens"]) == ("DECLINED_SMALL", 0)
    assert reply.ids == await first_token(cluster, prompt)
    (kept,) = await cluster.handles(session)
    assert (kept.handle_id, kept.state) == (grant.handle.handle_id, HANDLE_STATE_RETAINED)
    await cluster.release(kept.handle_id)
