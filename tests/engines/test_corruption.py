"""The comparison with the reference can fail: a connector that spoils pulled blocks while a flag
file exists."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from rich.console import Console
from tests.support.cluster import Cluster

from contraflow.cli.demo.run import report_conversation
from contraflow.cli.deployment import Deployment, DeploymentSpec

pytestmark = [pytest.mark.engines, pytest.mark.asyncio(loop_scope="session")]

ROOT = Path(__file__).resolve().parents[2]
FLAG = "CONTRAFLOW_TEST_CORRUPT"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def spoiled(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Cluster, Path]]:
    flag = tmp_path_factory.mktemp("corrupt") / "flag"
    spec = DeploymentSpec(
        routers=2,
        with_reference=True,
        connector="CorruptingConnector",
        connector_module="tests.engines.corrupting_connector",
        engine_env={"PYTHONPATH": str(ROOT), FLAG: str(flag)},
    )
    async with Deployment(spec) as deployment:
        yield Cluster(deployment), flag


async def test_the_demo_reports_one_spoiled_block(spoiled: tuple[Cluster, Path]) -> None:
    cluster, flag = spoiled
    output = io.StringIO()
    flag.touch()
    try:
        status = await report_conversation(cluster.deployment, Console(file=output, width=120))
    finally:
        flag.unlink()

    assert status != 0
    assert "tokens identical to the single-engine reference: 5 of 5" not in output.getvalue()
    assert "FAILED: turn" in output.getvalue()
    assert "the tokens differ from the reference's" in output.getvalue()


async def test_without_the_flag_the_same_path_is_right(spoiled: tuple[Cluster, Path]) -> None:
    cluster, _ = spoiled
    session, prompt = cluster.session(), cluster.text(160)
    first = await cluster.turn(prompt, session, tokens=100)
    prompt += first.ids + cluster.text(40)

    second = await cluster.turn(prompt, session)

    assert second.report["outcome"] == "PULLED"
    assert second.ids == await cluster.reference(prompt)
