"""Holding the conversation and judging it, against a deployment that can be made to misbehave."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from tests.support.deployment_fake import FakeDeployment, fake_deployment

from contraflow.cli.demo.figures import Outcome
from contraflow.cli.demo.run import run_conversation
from contraflow.cli.deployment import Deployment, ProcessDied


async def converse(**knobs: Any) -> tuple[Outcome, FakeDeployment]:
    async with fake_deployment() as fake:
        for name, value in knobs.items():
            assert hasattr(fake, name)
            setattr(fake, name, value)
        return await run_conversation(cast(Deployment, fake)), fake


async def test_a_good_deployment_passes() -> None:
    outcome, fake = await converse()
    assert outcome.problems() == []
    assert outcome.verdict().endswith("5 of 5 turns")
    assert fake.served_by == ["router-1"] * 2 + ["router-2"] * 3
    first, *later = outcome.turns
    assert (first.measured.pulled, first.share) == (0, None)
    assert all(turn.measured.pulled and turn.share == 63 / 64 for turn in later)


async def test_the_second_router_is_used_once_it_knows_the_session() -> None:
    _, fake = await converse(plans_behind=4)
    assert fake.plans_asked == 4


async def test_a_wrong_token_is_found() -> None:
    outcome, _ = await converse(corrupt_from_turn=3)
    assert outcome.verdict().endswith("2 of 5 turns")
    assert [problem.split(":")[0] for problem in outcome.problems()] == [
        "turn 3",
        "turn 4",
        "turn 5",
    ]


async def test_bytes_that_the_connector_does_not_report_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("contraflow.cli.demo.run._METRICS_SECONDS", 0.3)
    outcome, _ = await converse(unreported_bytes=1)
    assert ["bytes" in problem for problem in outcome.problems()] == [True] * 5


async def test_nothing_pulled_is_found() -> None:
    outcome, _ = await converse(forgetful=True)
    assert [turn.share for turn in outcome.turns] == [None, 0, 0, 0, 0]
    assert len(outcome.problems()) == 4


async def test_a_death_ends_the_conversation() -> None:
    died = ProcessDied("decode-1", 1, ["boom"], Path("log"))
    with pytest.raises(ProcessDied) as caught:
        await converse(failure=died, plans_behind=10**6)
    assert caught.value is died
