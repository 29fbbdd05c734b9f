"""A prefill engine that runs out of blocks around a pull: real vLLM, a pool of 80 blocks."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.contract.engine.test_claims import granted, with_proof
from tests.support.cluster import Cluster, Reply
from tests.support.wait import until_good

from contraflow.cli.deployment import Deployment, DeploymentSpec
from contraflow.core.transfer_params import OURS

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def scarce() -> AsyncIterator[Cluster]:
    spec = DeploymentSpec(with_reference=True, blocks=80, max_model_len=2400)
    async with Deployment(spec) as deployment:
        yield Cluster(deployment)


async def counted(cluster: Cluster, name: str) -> float:
    return (await cluster.deployment.metrics(cluster.prefill)).get(name, 0.0)


async def running(cluster: Cluster, prompt: int, tokens: int) -> asyncio.Task[Reply]:
    """A plain request that P has begun to work on."""
    task = asyncio.create_task(cluster.leg(cluster.prefill, cluster.text(prompt), None, tokens))
    await until_good(
        lambda: counted(cluster, "vllm:num_requests_running"), lambda number: number >= 1
    )
    return task


def outcome(reply: Reply) -> str:
    report: str = reply.body["kv_transfer_params"][OURS]["pull"]["outcome"]
    return report


async def test_a_request_that_is_preempted_after_its_pull_ends_well(scarce: Cluster) -> None:
    """Both grow beyond the pool; the later one, which has pulled, has to give way."""
    cluster, salt = scarce, uuid.uuid4().hex
    prompt, grant = await granted(cluster, salt)
    preempted = await counted(cluster, "vllm:num_preemptions_total")
    before = await cluster.counted()
    other = await running(cluster, 1100, 1000)

    reply = await cluster.leg(
        cluster.prefill, prompt, with_proof(grant), tokens=700, cache_salt=salt
    )

    assert reply.ids == await cluster.reference(prompt, 700)
    assert (await other).status == 200
    await until_good(cluster.counted, lambda now: now.bytes > before.bytes)
    await until_good(
        lambda: counted(cluster, "vllm:num_preemptions_total"), lambda now: now > preempted
    )


async def test_a_pull_that_has_to_wait_for_blocks_is_made_when_there_are_some(
    scarce: Cluster,
) -> None:
    cluster, salt = scarce, uuid.uuid4().hex
    prompt, grant = await granted(cluster, salt)
    other = await running(cluster, 2200, 150)

    reply = await cluster.leg(cluster.prefill, prompt, with_proof(grant), cache_salt=salt)

    assert outcome(reply) == "PULLED"
    assert reply.ids == await cluster.reference(prompt, 1)
    assert (await other).status == 200
