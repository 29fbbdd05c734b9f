"""A decode engine that is killed and replaced in its place."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from tests.support.cluster import Cluster

from contraflow.cli.deployment.control_plane import engines_in_view
from contraflow.core.errors import Reason
from contraflow.runtime.grpc_errors import from_rpc_error

pytestmark = pytest.mark.asyncio(loop_scope="session")

CONVERSATIONS = 100
AT_ONCE = 8


async def test_scenario_08_an_engine_that_held_a_hundred_handles_is_replaced(
    cluster: Cluster,
) -> None:
    """Scenario 9 too: both are configured with the same engine id. Each handle has 64 tokens, two
    blocks, and is worth a pull; those of the later turns are too many for the budget."""
    sessions = [cluster.session() for _ in range(CONVERSATIONS)]
    prompts = {session: cluster.text(45) for session in sessions}
    width = asyncio.Semaphore(AT_ONCE)

    async def turn(session: str, number: int) -> tuple[str, str]:
        async with width:
            reply = await cluster.turn(prompts[session], session, tokens=20, router=number % 2)
            assert reply.ids == await cluster.reference(prompts[session], 20)
        prompts[session] += reply.ids + cluster.text(10)
        return reply.report["decode"], reply.report["decision"]

    async def turns(of: list[str]) -> set[tuple[str, str]]:
        return set(await asyncio.gather(*(turn(one, n) for n, one in enumerate(of))))

    old = await cluster.decode_id()
    assert await turns(sessions) == {(old, "RECOMPUTE")}
    for number, session in enumerate(sessions):
        await cluster.until_planned(session, router=number % 2)

    await cluster.deployment.kill(cluster.decode.name)
    await cluster.deployment.restart(cluster.decode.name)

    new = await cluster.decode_id()
    assert new != old
    assert all(one.startswith(f"{cluster.decode.name}-") for one in (old, new))
    for router in cluster.deployment.routers:
        assert old not in await engines_in_view(router.grpc)
    for session in sessions[:3]:
        assert await cluster.handles(session) == []
        with pytest.raises(grpc.aio.AioRpcError) as denied:
            await cluster.acquire(session, engine_id=old)
        assert from_rpc_error(denied.value).reason is Reason.ENGINE_INCARNATION_STALE
    assert await turns(sessions) == {(new, "RECOMPUTE")}
    assert await turns(sessions[-20:]) == {(new, "PULL")}
