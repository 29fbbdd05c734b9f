"""Leases of seconds run out: of a handle that nobody claims, and of a claim that nobody reads."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.contract.engine.conftest import KINDS
from tests.support.cluster import Cluster

from contraflow.cli.deployment import Deployment, DeploymentSpec

pytestmark = pytest.mark.asyncio(loop_scope="session")

TTL = 12.0


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=KINDS, ids=str)
async def short_lived(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    spec = DeploymentSpec(
        engine=request.param,
        with_reference=True,
        retention_ttl=TTL,
        claim_start_by=5.0,
        claim_max_read=2.0,
    )
    async with Deployment(spec) as deployment:
        yield Cluster(deployment)


async def test_an_expired_handle_is_denied_and_the_turn_recomputes(
    short_lived: Cluster,
) -> None:
    cluster = short_lived
    session, prompt = cluster.session(), cluster.text(160)
    first = await cluster.turn(prompt, session, tokens=100)
    prompt += first.ids + cluster.text(40)
    await cluster.until_handles(session, 1)

    await cluster.until_handles(session, 0, within=2 * TTL)
    second = await cluster.turn(prompt, session)

    assert second.report["decision"] == "RECOMPUTE"
    assert second.report.get("denial", "NONE") in ("NONE", "HANDLE_NOT_FOUND", "HANDLE_EXPIRED")
    assert second.ids == await cluster.reference(prompt)


async def test_a_claim_without_a_read_lapses_and_frees_the_blocks(
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
