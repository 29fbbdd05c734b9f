"""What is told of turns in which something failed: header and metrics."""

from __future__ import annotations

import pytest
from tests.integration.turn_failures.cases import Case, claimed

from contraflow.core.errors import HandleClaimed
from contraflow.core.instructions import Pull

pytestmark = pytest.mark.integration


async def test_scenario_02_discarded_tokens_and_denials_are_counted_and_explained(
    case: Case,
) -> None:
    metrics = case.world.app.metrics.registry
    report = Pull("PULLED", "d1", 299, 192, 0, 192, 108)
    case.world.prefill.script.pull = lambda received: report if claimed(received) else None
    case.world.decode.script.statuses = [500]
    pulled = await case.next()
    assert (pulled.plan["offered"], pulled.plan["discarded"]) == ("299", "107")
    case.owner.denial = HandleClaimed("another turn has it")
    await case.next()

    assert metrics.get_sample_value("contraflow_router_discarded_tokens_total") == 107
    retries = {"kind": "DECODE_WITHOUT_BLOCKS"}
    assert metrics.get_sample_value("contraflow_router_retries_total", retries) == 1
    turn = {
        "status": "200", "decision": "RECOMPUTE", "reason": "ACQUIRE_DENIED",
        "denial": "HANDLE_CLAIMED",
    }  # fmt: skip
    assert metrics.get_sample_value("contraflow_router_turns_total", turn) == 1
    for source, tokens in (("pulled", 192), ("local", 0), ("computed", 108)):
        name = "contraflow_router_prompt_tokens_total"
        assert metrics.get_sample_value(name, {"source": source}) == tokens
