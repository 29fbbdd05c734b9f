"""The benches run and measure what they say; how long that takes is nobody's assertion."""

from __future__ import annotations

import pytest

from contraflow.bench import acquire, engines
from contraflow.cli.deployment import EngineKind
from contraflow.cli.deployment.progress import Silent

pytestmark = pytest.mark.integration


async def test_claims_are_put_beside_bare_calls() -> None:
    results = await acquire.measure(Silent(), callers=(1, 3), calls=9)
    rows = [measured.row() for measured in results]
    assert [(row["callers"], row["calls"]) for row in rows] == [(1, 9), (3, 9)]
    assert all(row["ratio_p50"] > 0 and row["ratio_p99"] > 0 for row in rows)


async def test_a_request_meets_a_pool_that_idle_conversations_have_filled() -> None:
    results = await engines.measure(Silent(), EngineKind.SIM, rounds=1, lease=6.0)
    document = engines.as_document(results)
    assert [row["connector"] for row in document["connectors"]] == ["Contraflow", "NixlConnector"]
    assert all(row["pinned"] > 0.7 for row in document["connectors"]), document
    assert document["ratio_of_waits"] > 0
