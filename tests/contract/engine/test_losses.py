"""Parts that go and come back while engines keep running."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from tests.support.cluster import Cluster
from tests.support.wait import until_good

from contraflow.cli.deployment.http_client import post_json

pytestmark = pytest.mark.asyncio(loop_scope="session")

FEW = 4 / 512
"""Share of a pool that a few blocks take."""


async def count_records(cluster: Cluster) -> int:
    """Keys that etcd holds."""
    everything = {"key": "AA==", "range_end": "AA==", "count_only": True}
    found = await post_json(cluster.deployment.addresses.etcd, "/v3/kv/range", everything)
    return int(found.get("count", 0))


async def nothing_is_left(cluster: Cluster, *sessions: str) -> None:
    """Each session has one handle, and without these both engines are as empty as without
    any conversation."""
    for session in sessions:
        await cluster.until_handles(session, 1)
    await cluster.release_all()
    await cluster.until_pinned_below(FEW, cluster.prefill)
    await cluster.until_pinned_below(FEW)


async def test_scenario_25_without_the_agent_turns_go_on_and_reuse_returns_with_it(
    cluster: Cluster,
) -> None:
    session, others, prompt = cluster.session(), cluster.session(), cluster.text(160)
    first = await cluster.turn(prompt, session, tokens=100)
    prompt += first.ids + cluster.text(40)

    await cluster.deployment.kill("agent")
    try:
        orphaned = await cluster.turn(prompt, session, tokens=100)
        await cluster.until_unregistered()
        other = await cluster.turn(prompt, others, tokens=100)
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
    await nothing_is_left(cluster, session, others)


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
        assert second.ids == await cluster.reference(prompt, 100)
        prompt += second.ids + cluster.text(40)
        if part == "directory":
            # Nobody renews the engines' leases: all that was registered is gone from etcd.
            await until_good(partial(count_records, cluster), lambda count: count == 0)
        third = await cluster.turn(prompt, session, tokens=100)
        assert third.report["outcome"] == "PULLED", third.report
        assert third.ids == await cluster.reference(prompt, 100)
        prompt += third.ids + cluster.text(40)
        # The other one may not know of it: slower, not wrong.
        elsewhere = await cluster.turn(prompt, session, tokens=100, router=1)
    finally:
        await cluster.deployment.restart(part)

    assert elsewhere.ids == await cluster.reference(prompt, 100)
    prompt += elsewhere.ids + cluster.text(40)
    resumed = await cluster.turn(prompt, session, tokens=100)
    assert resumed.report["outcome"] == "PULLED", resumed.report
    assert resumed.ids == await cluster.reference(prompt, 100)
    # And every router hears of handles again.
    prompt += resumed.ids + cluster.text(40)
    await cluster.until_planned(session, router=1)
    again = await cluster.turn(prompt, session, router=1)
    assert again.report["outcome"] == "PULLED", again.report
    assert again.ids == await cluster.reference(prompt)
    await nothing_is_left(cluster, session)


async def test_scenario_32_the_newest_handle_is_found_behind_a_record_of_an_older_one(
    cluster: Cluster,
) -> None:
    session, prompt = cluster.session(), cluster.text(160)
    first = await cluster.turn(prompt, session, tokens=100)
    prompt += first.ids + cluster.text(40)
    await cluster.until_planned(session, router=1)

    await cluster.deployment.kill("directory")
    try:
        second = await cluster.turn(prompt, session, tokens=100)
        assert second.report["outcome"] == "PULLED", second.report
        prompt += second.ids + cluster.text(40)
        third = await cluster.turn(prompt, session, router=1)
    finally:
        await cluster.deployment.restart("directory")

    assert third.report["outcome"] == "PULLED", third.report
    # More than the handle that the record tells of had.
    assert third.tokens("local") + third.tokens("pulled") > 300
    assert third.ids == await cluster.reference(prompt)


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
