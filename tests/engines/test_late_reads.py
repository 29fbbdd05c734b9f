"""Decode reads prefill's blocks long after they were handed over, on real engines with leases of
six seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from tests.support.cluster import Cluster
from tests.support.wait import until_good

from contraflow.cli.deployment import Deployment, DeploymentSpec, PromptTokens, prompt_tokens

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = 80
LEASE = 6.0


@dataclass(frozen=True)
class Slow:
    """Engines that ``flags`` in a folder hold up."""

    cluster: Cluster
    folder: Path

    @contextmanager
    def held_up(self, *flags: str) -> Iterator[None]:
        """Let workers be ``waiting``, or ``mute``."""
        for flag in flags:
            (self.folder / flag).touch()
        try:
            yield
        finally:
            for flag in flags:
                (self.folder / flag).unlink()

    async def decode(self) -> PromptTokens:
        """Where D's prompts came from so far. Lags behind by a second or so."""
        return prompt_tokens(await self.cluster.deployment.metrics(self.cluster.decode))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def slow(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Slow]:
    folder = tmp_path_factory.mktemp("slow")
    spec = DeploymentSpec(
        with_reference=True,
        blocks=BLOCKS,
        max_model_len=2400,
        connector="SlowConnector",
        connector_module="tests.engines.slow_connector",
        engine_env={"PYTHONPATH": str(ROOT), "CONTRAFLOW_TEST_SLOW": str(folder)},
    )
    async with Deployment(spec) as deployment:
        cluster = Cluster(deployment)
        await cluster.turn(cluster.text(160), cluster.session())  # they know each other now
        yield Slow(cluster, folder)


async def test_what_is_read_after_its_lease_is_computed_again(slow: Slow) -> None:
    cluster, session = slow.cluster, slow.cluster.session()
    prompt = cluster.text(320)
    before = await slow.decode()
    with slow.held_up("waiting", "mute"):
        turn = asyncio.create_task(cluster.turn(prompt, session, tokens=60))
        await until_good(lambda: cluster.pinned(cluster.prefill), lambda pinned: pinned > 0)
        await cluster.until_pinned_below(1 / BLOCKS, cluster.prefill)
        for _ in range(3):  # others take what is free
            await cluster.leg(cluster.prefill, cluster.text(2200), None)
    answer = await turn

    assert answer.status == 200, answer.body
    assert answer.ids == await cluster.reference(prompt, 60)
    counted = await until_good(slow.decode, lambda now: now.computed >= before.computed + 320)
    assert counted.pulled == before.pulled
    assert counted.bytes > before.bytes
    # It is worth as much as any other to the next turn.
    prompt += answer.ids + cluster.text(40)
    second = await cluster.turn(prompt, session)
    assert second.report["outcome"] == "PULLED", second.report
    assert second.ids == await cluster.reference(prompt)


async def test_heartbeats_keep_what_is_read_late(slow: Slow) -> None:
    cluster, session = slow.cluster, slow.cluster.session()
    prompt = cluster.text(320)
    before = await slow.decode()
    with slow.held_up("waiting"):
        turn = asyncio.create_task(cluster.turn(prompt, session, tokens=60))
        await asyncio.sleep(2 * LEASE)  # nothing happens that could be waited for
        assert await cluster.pinned(cluster.prefill) >= 10 / BLOCKS
    answer = await turn

    assert answer.ids == await cluster.reference(prompt, 60)
    counted = await until_good(slow.decode, lambda now: now.total >= before.total + 320)
    assert counted.pulled == before.pulled + 320
