"""Leases of seconds: renewed for a while, over budget, and at last run out; and a claim that
nobody reads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import pairwise

import pytest
import pytest_asyncio
from tests.contract.engine.conftest import SLOW_KINDS
from tests.support.cluster import Cluster
from tests.support.wait import until_good

from contraflow.cli.deployment import Deployment, DeploymentSpec
from contraflow.wire.convert import seconds

pytestmark = pytest.mark.asyncio(loop_scope="session")

TTL = 12.0
MAX_IDLE = 22.0  # renewed at 6, 12 and 18 seconds, or a pass later each; expired at 30 to 32
BUDGET = 40  # blocks


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=SLOW_KINDS, ids=str)
async def short_lived(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    spec = DeploymentSpec(
        engine=request.param,
        with_reference=True,
        retention_ttl=TTL,
        retention_max_idle=MAX_IDLE,
        retention_budget=BUDGET / DeploymentSpec.blocks,
        claim_start_by=5.0,
        claim_max_read=2.0,
    )
    async with Deployment(spec) as deployment:
        yield Cluster(deployment)


async def test_a_conversation_that_idles_beyond_its_lease_is_renewed_and_pulled(
    short_lived: Cluster,
) -> None:
    cluster = short_lived
    session, prompt = cluster.session(), cluster.text(160)
    first = await cluster.turn(prompt, session, tokens=100)
    prompt += first.ids + cluster.text(40)
    (handle,) = await cluster.until_handles(session, 1)
    leases = [seconds(handle.ttl)]

    async def renewals() -> int:
        leases.extend(seconds(found.ttl) for found in await cluster.handles(session))
        return sum(later > earlier + 1 for earlier, later in pairwise(leases))

    await until_good(renewals, lambda count: count == 3, within=2 * TTL)
    assert [found.handle_id for found in await cluster.handles(session)] == [handle.handle_id]
    before = await cluster.counted()
    second = await cluster.turn(prompt, session)

    assert second.report["decision"] == "PULL"
    assert second.tokens("pulled") > 0
    assert second.ids == await cluster.reference(prompt)
    counted = await cluster.counted_since(before, len(prompt))
    assert counted.pulled == second.tokens("pulled")


async def test_scenario_24_beyond_the_budget_the_oldest_conversations_are_released(
    short_lived: Cluster,
) -> None:
    cluster = short_lived
    sessions = [cluster.session() for _ in range(7)]
    prompts = []
    for session in sessions:
        prompt = cluster.text(200)
        first = await cluster.turn(prompt, session, tokens=60)
        prompts.append(prompt + first.ids + cluster.text(40))
        # Before the next one ends, so that their order is known.
        (handle,) = await cluster.until_handles(session, 1)
    kept = BUDGET // handle.num_blocks
    assert 0 < kept < len(sessions) - 1

    for session in sessions[:-kept]:
        await cluster.until_handles(session, 0)
    for session in sessions[-kept:]:
        assert len(await cluster.handles(session)) == 1
    newest = await cluster.turn(prompts[-1], sessions[-1])
    oldest = await cluster.turn(prompts[0], sessions[0])

    assert (newest.report["decision"], oldest.report["decision"]) == ("PULL", "RECOMPUTE")
    assert newest.tokens("pulled") > 0
    assert newest.ids == await cluster.reference(prompts[-1])
    assert oldest.ids == await cluster.reference(prompts[0])


async def test_scenario_03_a_handle_that_has_idled_too_long_expires_and_the_turn_recomputes(
    short_lived: Cluster,
) -> None:
    cluster = short_lived
    session, prompt = cluster.session(), cluster.text(160)
    first = await cluster.turn(prompt, session, tokens=100)
    prompt += first.ids + cluster.text(40)
    await cluster.until_handles(session, 1)

    await cluster.until_handles(session, 0, within=MAX_IDLE + 2 * TTL)
    second = await cluster.turn(prompt, session)

    assert second.report["decision"] == "RECOMPUTE"
    assert second.report.get("denial", "NONE") in ("NONE", "HANDLE_NOT_FOUND", "HANDLE_EXPIRED")
    assert second.ids == await cluster.reference(prompt)


async def test_scenario_03_turns_shortly_before_the_end_of_a_lease(short_lived: Cluster) -> None:
    """A claim takes 7 seconds of a lease: 10 leave a slow machine 3 for the turn to get there. One
    with 4 seconds left has been renewed for the last time; with 6 left it may be about to be
    renewed."""
    cluster = short_lived

    async def turn_with(left: float) -> str:
        session, prompt = cluster.session(), cluster.text(160)
        first = await cluster.turn(prompt, session, tokens=100)
        prompt += first.ids + cluster.text(40)
        await cluster.until_handles(session, 1)

        async def lease() -> float:
            handles = await cluster.handles(session)
            return max((seconds(found.ttl) for found in handles), default=0.0)

        await until_good(lease, lambda ttl: ttl < left, within=MAX_IDLE + TTL)
        reply = await cluster.turn(prompt, session)
        assert reply.ids == await cluster.reference(prompt)
        return reply.report["decision"]

    assert await turn_with(10.0) == "PULL"
    await turn_with(6.0)
    assert await turn_with(4.0) == "RECOMPUTE"


async def test_scenario_06_clients_that_leave_at_any_moment_leave_nothing_but_leases(
    short_lived: Cluster,
) -> None:
    """The moments are spread over a turn that pulls: queued, in the pull, between the legs, in
    decode. Which is which depends on the machine, what must come of it does not."""
    cluster = short_lived
    sessions = [cluster.session() for _ in range(9)]
    took = 0.0
    for number, session in enumerate(sessions):
        prompt = cluster.text(160)
        first = await cluster.turn(prompt, session, tokens=100)
        prompt += first.ids + cluster.text(40)

        began = time.monotonic()
        stream = await cluster.stream(prompt, session, 30)
        with suppress(TimeoutError):
            async with asyncio.timeout(took * number / len(sessions) if number else None):
                await stream.end()
        stream.leave()
        took = took or time.monotonic() - began

        again = await cluster.turn(prompt, session)
        assert again.ids == await cluster.reference(prompt)

    for session in sessions:
        await cluster.until_handles(session, 0, within=MAX_IDLE + 2 * TTL)
    for engine in (cluster.prefill, cluster.decode):
        await cluster.until_pinned_below(1 / DeploymentSpec.blocks, engine)


async def test_scenario_03_a_claim_without_a_read_lapses_and_frees_the_blocks(
    short_lived: Cluster,
) -> None:
    cluster = short_lived
    session, prompt = cluster.session(), cluster.text(160)
    first = await cluster.turn(prompt, session, tokens=100)
    prompt += first.ids + cluster.text(40)
    await cluster.acquire(session)

    await cluster.until_handles(session, 0)
    second = await cluster.turn(prompt, session)

    assert second.report["decision"] == "RECOMPUTE"
    assert second.ids == await cluster.reference(prompt)
