"""An engine that drains and keeps nothing."""

from __future__ import annotations

from functools import partial

import grpc
import pytest
from tests.support.cluster import Cluster
from tests.support.wait import until_good

from contraflow.cli.deployment import MODEL_NAME
from contraflow.cli.deployment.control_plane import plan_turn
from contraflow.router.tenancy import DEFAULT_TENANT
from contraflow.v1.router_service_pb2 import DECISION_REASON_NO_HANDLE as NO_HANDLE

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def reason(cluster: Cluster, session: str) -> int | None:
    """Why a router that never served the session would recompute its next turn; None while no
    engine would serve it."""
    try:
        target = cluster.deployment.routers[1].grpc
        return (await plan_turn(target, DEFAULT_TENANT, session, MODEL_NAME)).reason
    except grpc.aio.AioRpcError:
        return None


async def test_a_drain_that_releases_frees_what_is_retained_and_what_a_running_turn_retains(
    cluster: Cluster,
) -> None:
    await cluster.release_all()
    # What is left has claims of other tests, and ends with them.
    before = await cluster.until_steady()
    idle, claimed, busy = (cluster.session() for _ in range(3))
    for session in (idle, claimed):
        await cluster.turn(cluster.text(160), session)
        await cluster.until_planned(session, router=1)
    grant = await cluster.acquire(claimed)
    running = await cluster.stream(cluster.text(160), busy, tokens=300)
    await running.first_token()

    await cluster.drain(True, release=True)

    await cluster.until_handles(idle, 0)
    assert len(await cluster.handles(claimed)) == 1  # somebody may be reading
    await cluster.give_back(grant.handle.claim_id)
    await cluster.until_handles(claimed, 0)
    await running.end()
    running.leave()
    await cluster.until_pinned_below(before + 0.01)
    await cluster.until_handles(busy, 0)

    await cluster.drain(False)

    for session in (idle, claimed, busy):
        await until_good(partial(reason, cluster, session), lambda found: found == NO_HANDLE)
    await cluster.turn(cluster.text(160), idle)
    await cluster.until_handles(idle, 1)
    await cluster.release_all()
