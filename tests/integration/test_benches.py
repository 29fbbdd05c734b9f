"""The benches run and measure what they say; how long that takes is nobody's assertion."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contraflow.bench import acquire, idle, legs
from contraflow.bench.limits import LEGS
from contraflow.bench.multiturn.shapes import Sizes
from contraflow.cli.deployment import EngineKind
from contraflow.cli.deployment.progress import Silent

pytestmark = pytest.mark.integration


async def test_claims_are_put_beside_bare_calls() -> None:
    results = await acquire.measure(Silent(), callers=(1, 3), calls=9)
    rows = [measured.row() for measured in results]
    assert [(row["callers"], row["calls"]) for row in rows] == [(1, 9), (3, 9)]
    assert all(row["ratio_p50"] > 0 and row["ratio_p99"] > 0 for row in rows)


async def test_a_request_meets_a_pool_that_idle_conversations_have_filled() -> None:
    results = await idle.measure(Silent(), EngineKind.SIM, rounds=1, lease=6.0)
    document = idle.as_document(results)
    assert [row["connector"] for row in document["connectors"]] == ["Contraflow", "NixlConnector"]
    assert all(row["pinned"] > 0.7 for row in document["connectors"]), document
    assert document["ratio_of_waits"] > 0


async def test_every_leg_is_what_it_is_called(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    asked = legs.Asked(EngineKind.SIM, Sizes(2, 3, (200, 200), 150, 100), json=file)
    await legs.measure(asked, Silent())
    document = json.loads(file.read_text())
    assert document["problems"] == []
    assert len(document["limits"]) == 3
    assert [row["leg"] for row in document["later_turns"]] == list(LEGS)
    for sample in document["samples"]:
        if sample["leg"] == "own-cache" and sample["turn"]["turn"] > 1:
            # What the turn adds, the token before it, and a block that it ends in the middle of.
            assert int(sample["report"]["computed"]) <= 150 + 1 + 32
