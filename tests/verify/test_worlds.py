"""Fleets in virtual time under faults: nothing is violated, and what is planted is caught."""

from __future__ import annotations

import pytest

from contraflow.verify.campaign import catch, run_all, run_quietly
from contraflow.verify.minimise import Minimiser
from contraflow.verify.planted import PLANTS
from contraflow.verify.run import Result, Schedule

SEEDS, TURNS = 24, 300


def test_no_seed_of_a_fixed_set_violates_anything() -> None:
    campaign = run_all([Schedule(seed, TURNS) for seed in range(SEEDS)], 2, lambda now: None)
    assert [(one.schedule.seed, one.violations) for one in campaign.failed] == []
    assert campaign.turns > 0.9 * SEEDS * TURNS
    assert campaign.blocks >= 32 * campaign.turns
    assert campaign.faulty >= 0.2 * campaign.turns
    assert campaign.excused < 0.2 * campaign.turns
    assert campaign.seen["pull PULLED"] > 0.05 * campaign.turns


def test_a_seed_decides_everything() -> None:
    schedule = Schedule(5, 60, frozenset({1}))
    assert run_quietly(schedule).digest == run_quietly(schedule).digest
    assert run_quietly(Schedule(6, 60)).digest != run_quietly(schedule).digest


@pytest.mark.parametrize("number", range(len(PLANTS)), ids=[plant.name for plant in PLANTS])
def test_what_is_planted_is_caught(number: int) -> None:
    assert catch(number) is not None


def test_a_failing_schedule_is_shortened() -> None:
    plant = next(one for one in PLANTS if one.name == "a proof proves anything")

    def run(schedule: Schedule) -> Result:
        with plant.patch():
            return run_quietly(schedule)

    failing = next(result for seed in range(20) if (result := run(Schedule(seed, 100))).violations)
    told: list[Schedule] = []
    best = Minimiser(run, told.append).shorten(failing)
    assert run(best).violations
    assert best.turns < failing.schedule.turns
    assert len(best.skip) >= len(failing.begun) // 2  # this one needs hardly any fault
    assert told[-1] == best
