"""Reads that fail on real engines, under either of vLLM's policies: turns are slower, not lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from tests.support.cluster import Cluster

from contraflow.cli.deployment import Deployment, DeploymentSpec

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Failing:
    """Engines whose reads fail in the direction that ``flag`` holds."""

    cluster: Cluster
    flag: Path
    policy: str


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["recompute", "fail"])
async def failing(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Failing]:
    flag = tmp_path_factory.mktemp("fail") / "flag"
    flag.write_text("")
    spec = DeploymentSpec(
        with_reference=True,
        connector="FailingConnector",
        connector_module="tests.engines.failing_connector",
        engine_env={
            "PYTHONPATH": str(ROOT),
            "CONTRAFLOW_TEST_FAIL": str(flag),
            "CONTRAFLOW_TEST_POLICY": request.param,
        },
    )
    async with Deployment(spec) as deployment:
        yield Failing(Cluster(deployment), flag, request.param)


async def test_a_pull_that_fails_is_recomputed(failing: Failing) -> None:
    cluster, session = failing.cluster, failing.cluster.session()
    prompt = cluster.text(160)
    first = await cluster.turn(prompt, session, tokens=100)
    prompt += first.ids + cluster.text(40)
    failing.flag.write_text("D→P")

    second = await cluster.turn(prompt, session, tokens=100)
    failing.flag.write_text("")

    assert second.status == 200, second.body
    assert second.ids == await cluster.reference(prompt, 100)
    if failing.policy == "fail":  # vLLM answers 500, and P is asked once more
        assert second.report["retried"] == "PREFILL_WITHOUT_HANDLE"
    else:
        assert second.report["outcome"] == "FAILED"
    prompt += second.ids + cluster.text(40)
    third = await cluster.turn(prompt, session)
    assert third.report["outcome"] == "PULLED", third.report
    assert third.ids == await cluster.reference(prompt)


async def test_what_decode_can_not_read_it_computes(failing: Failing) -> None:
    cluster, session = failing.cluster, failing.cluster.session()
    prompt = cluster.text(160)
    failing.flag.write_text("P→D")

    first = await cluster.turn(prompt, session, tokens=100)
    failing.flag.write_text("")

    assert first.status == 200, first.body
    assert first.ids == await cluster.reference(prompt, 100)
    if failing.policy == "fail":
        assert first.report["retried"] == "DECODE_WITHOUT_BLOCKS"
    prompt += first.ids + cluster.text(40)
    second = await cluster.turn(prompt, session)
    assert second.report["outcome"] == "PULLED", second.report
    assert second.ids == await cluster.reference(prompt)
