"""A deployment whose progress can not be told any more."""

from __future__ import annotations

import errno

import pytest

from contraflow.cli.deployment import Deployment, DeploymentSpec, EngineKind
from contraflow.cli.deployment.procfs import session_members
from contraflow.cli.deployment.progress import Silent

pytestmark = pytest.mark.integration


class Full(Silent):
    """Writes to a disk that is full by the time of the stop."""

    def waiting(self, text: str) -> None:
        if text.startswith("stopping"):
            raise OSError(errno.ENOSPC, "No space left on device")


async def test_it_stops_and_leaves_nothing_even_if_that_can_not_be_told() -> None:
    spec = DeploymentSpec(engine=EngineKind.SIM, with_services=False)
    with pytest.raises(OSError, match="No space left"):
        async with Deployment(spec, progress=Full()) as deployment:
            pids = [deployment.pid("prefill-1"), deployment.pid("decode-1")]
    assert not any(map(session_members, pids))
    assert not list(deployment.run_dir.glob("tmp-*"))
