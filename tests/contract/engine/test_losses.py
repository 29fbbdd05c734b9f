"""Parts that go and come back while engines keep running."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_scenario_25_without_the_agent_turns_go_on_and_reuse_returns_with_it(
    cluster: Cluster,
) -> None:
    session, prompt = cluster.session(), cluster.text(160)
    first = await cluster.turn(prompt, session, tokens=100)
    prompt += first.ids + cluster.text(40)

    await cluster.deployment.kill("agent")
    try:
        orphaned = await cluster.turn(prompt, session, tokens=100)
        await cluster.until_unregistered()
        other = await cluster.turn(prompt, cluster.session(), tokens=100)
    finally:
        await cluster.deployment.restart("agent")

    assert orphaned.report["decision"] == other.report["decision"] == "RECOMPUTE"
    assert orphaned.ids == other.ids == await cluster.reference(prompt, 100)
    # The engines come back with their handles, and the conversation goes on where it was.
    prompt += orphaned.ids + cluster.text(40)
    await cluster.until_handles(session, 1)
    resumed = await cluster.turn(prompt, session)
    assert resumed.report["outcome"] == "PULLED", resumed.report
    assert resumed.ids == await cluster.reference(prompt)


@pytest.mark.parametrize("part", ["directory", "etcd"])
async def test_scenario_25_without_the_directory_or_etcd_turns_still_pull(
    cluster: Cluster, part: str
) -> None:
    session, prompt = cluster.session(), cluster.text(160)
    first = await cluster.turn(prompt, session, tokens=100)
    prompt += first.ids + cluster.text(40)

    await cluster.deployment.kill(part)
    try:
        # This router served the last turn and asks the owner itself.
        second = await cluster.turn(prompt, session, tokens=100)
        assert second.report["outcome"] == "PULLED", second.report
        prompt += second.ids + cluster.text(40)
        # The other one may not know of it: slower, not wrong.
        elsewhere = await cluster.turn(prompt, session, tokens=100, router=1)
    finally:
        await cluster.deployment.restart(part)

    assert second.ids == await cluster.reference(prompt[: len(prompt) - 140], 100)
    assert elsewhere.ids == await cluster.reference(prompt, 100)
    prompt += elsewhere.ids + cluster.text(40)
    resumed = await cluster.turn(prompt, session)
    assert resumed.report["outcome"] == "PULLED", resumed.report
    assert resumed.ids == await cluster.reference(prompt)


async def test_a_router_that_dies_takes_nothing_along(cluster: Cluster) -> None:
    session, prompt = cluster.session(), cluster.text(160)
    first = await cluster.turn(prompt, session, tokens=100)
    prompt += first.ids + cluster.text(40)

    await cluster.deployment.kill("router-1")
    try:
        await cluster.until_planned(session, router=1)
        second = await cluster.turn(prompt, session, router=1)
    finally:
        await cluster.deployment.restart("router-1")

    assert second.report["outcome"] == "PULLED"
    assert second.ids == await cluster.reference(prompt)


async def test_turns_of_many_sessions_at_once(cluster: Cluster) -> None:
    async def conversation(number: int) -> list[str]:
        session, prompt = cluster.session(), cluster.text(120)
        outcomes = []
        for _ in range(3):
            reply = await cluster.turn(prompt, session, tokens=70, router=number % 2)
            assert reply.ids == await cluster.reference(prompt, 70)
            outcomes.append(reply.report.get("outcome", ""))
            prompt += reply.ids + cluster.text(20)
        return outcomes[1:]

    later = await asyncio.gather(*(conversation(number) for number in range(6)))

    assert {outcome for turns in later for outcome in turns} == {"PULLED"}
