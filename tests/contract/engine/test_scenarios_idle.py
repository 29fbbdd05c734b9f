"""Scenario 24: far more idle conversations than a pool holds."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.cluster import Cluster, Reply
from tests.support.wait import until_good

from contraflow.cli.deployment import DeploymentSpec

pytestmark = pytest.mark.asyncio(loop_scope="session")

CONVERSATIONS = 200
AT_ONCE = 4
LENGTH = 620  # tokens, so that a conversation leaves 20 of 512 blocks


async def test_scenario_24_two_hundred_idle_conversations(cluster: Cluster) -> None:
    sessions = [cluster.session() for _ in range(CONVERSATIONS)]
    prompts = {session: cluster.text(LENGTH) for session in sessions}
    replies: dict[str, Reply] = {}
    pinned: list[float] = []

    async def talk(session: str) -> None:
        replies[session] = await cluster.turn(prompts[session], session, tokens=8)

    async with asyncio.timeout(200):
        for start in range(0, CONVERSATIONS, AT_ONCE):
            await asyncio.gather(*map(talk, sessions[start : start + AT_ONCE]))
            pinned.append(await cluster.pinned())

    assert {reply.status for reply in replies.values()} == {200}
    # The engine's own floor, for what ended since the agent last looked; one handle may be on its
    # way out.
    assert max(pinned) <= 0.85 + 21 / DeploymentSpec.blocks, pinned
    within = DeploymentSpec.retention_budget + 0.01
    await until_good(cluster.pinned, lambda share: share <= within)

    handles = {session: await cluster.handles(session) for session in sessions}
    kept = [number for number, session in enumerate(sessions) if handles[session]]
    assert len(kept) >= 8
    assert min(kept) >= CONVERSATIONS - len(kept) - AT_ONCE, kept  # the newest, but for a tie
    # A newcomer that needs more than is free, the newest and the oldest.
    long = cluster.text(3000)
    assert (await cluster.turn(long, "", tokens=8)).ids == await cluster.reference(long, 8)
    for session, outcome in ((sessions[-1], "PULL"), (sessions[0], "RECOMPUTE")):
        prompt = prompts[session] + replies[session].ids + cluster.text(20)
        reply = await cluster.turn(prompt, session, tokens=8)
        assert reply.report["decision"] == outcome
        assert reply.ids == await cluster.reference(prompt, 8)

    await cluster.release_all()
    await cluster.until_pinned_below(0.01)
