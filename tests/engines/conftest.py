"""One deployment of real engines serves all tests of this folder that leave it as it was."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from tests.engines.cluster import Cluster

from contraflow.cli.deployment import Deployment, DeploymentSpec


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def cluster() -> AsyncIterator[Cluster]:
    """1P1D, the reference, two routers."""
    async with Deployment(DeploymentSpec(routers=2, with_reference=True)) as deployment:
        yield Cluster(deployment)
