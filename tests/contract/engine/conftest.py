"""One suite for real vLLM with NIXL and for the sim engine: what holds for the one must hold
for the other. One deployment of each serves all tests that leave it as it was.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.support.cluster import Cluster

from contraflow.cli.deployment import Deployment, DeploymentSpec, EngineKind

KINDS = [EngineKind.SIM, pytest.param(EngineKind.VLLM, marks=pytest.mark.engines)]
SLOW_KINDS = [
    EngineKind.SIM,
    pytest.param(EngineKind.VLLM, marks=[pytest.mark.engines, pytest.mark.slow]),
]
"""For tests that wait for real leases, or start engines over and over."""


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=KINDS, ids=str)
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    """1P1D, the reference, two routers."""
    spec = DeploymentSpec(engine=request.param, routers=2, with_reference=True)
    async with Deployment(spec) as deployment:
        yield Cluster(deployment)
