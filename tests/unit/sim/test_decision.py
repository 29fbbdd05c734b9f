"""The judge of decisions: what it counts, and what it fails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contraflow.core.break_even import Choice
from contraflow.core.fit import Expected
from contraflow.sim.decision import (
    KNOWN_FROM,
    MODELS,
    RULES,
    Condition,
    Exploring,
    Length,
    Load,
    Turn,
    World,
    conditions,
    excess,
    excess_of,
    judge,
    tie,
)

IDLE = Condition("Qwen3-32B", "idle")
LENGTH = Length(IDLE, 1024, 400, 1.0, 1.0, {"64": 1.0, "never": 1.5})


def turn(pulls: bool, pull: float, recompute: float, gap: int = 800) -> Turn:
    choice = Choice(pulls, explores=False, pull=Expected(1.0), recompute=Expected(1.0))
    return Turn(1000, gap, choice, pull, recompute)


def test_the_oracle_takes_the_sooner_way_of_each_turn() -> None:
    assert excess([turn(True, 1.0, 2.0), turn(False, 3.0, 1.0)]) == 0
    assert excess([turn(True, 1.0, 2.0), turn(True, 3.0, 1.0)]) == pytest.approx(1.0)


def test_a_rule_pulls_from_its_threshold_on() -> None:
    turns = [turn(True, 1.0, 2.0, gap=800), turn(True, 3.0, 1.0, gap=100)]
    assert excess_of(256, turns) == 0
    assert excess_of(RULES["always"], turns) == pytest.approx(1.0)
    assert excess_of(RULES["never"], turns) == pytest.approx(0.5)


def test_what_is_longer_than_a_rule_by_more_than_a_tie_fails() -> None:
    most = tie(IDLE.load.noise, LENGTH.turns)
    assert replace(LENGTH, fitted=1 + 0.9 * most).holds
    assert not replace(LENGTH, fitted=1 + 1.1 * most).holds
    assert replace(LENGTH, fitted=1.02, rules={"64": 1.02}).holds
    assert not replace(LENGTH, fitted=1.04, rules={"64": 1.04}).holds


def test_a_wrong_profile_may_show_at_one_length_but_not_in_all() -> None:
    wrong = replace(LENGTH, condition=replace(IDLE, link=10.0), fitted=1.02)
    assert wrong.holds
    assert not replace(wrong, shortest=None).holds


@pytest.mark.parametrize("too_much", [{"before": 2}, {"share": 0.021}, {"spent": 0.011}])
def test_exploring_too_much_fails(too_much: dict[str, float]) -> None:
    allowed = Exploring(IDLE, before=1, share=0.02, spent=0.01)
    assert allowed.holds
    assert not replace(allowed, **too_much).holds  # type: ignore[arg-type]


def test_a_load_slows_what_it_names() -> None:
    idle, busy = World(MODELS[IDLE.model]), Load(engine=3, link=2).on(World(MODELS[IDLE.model]))
    assert busy.costs.pull_seconds(500) == pytest.approx(2 * idle.costs.pull_seconds(500))
    extra = busy.computing(0, 500) - idle.computing(0, 500)
    assert extra == pytest.approx(2 * idle.costs.compute_seconds(500, 0))


def test_a_link_is_judged_once_it_is_known_by_length_and_in_all() -> None:
    lengths, exploring = judge(IDLE, turns=80, seeds=[1, 2])
    *parts, whole = lengths
    assert sum(one.turns for one in parts) == whole.turns == 2 * (80 - KNOWN_FROM)
    assert all(one.over_oracle >= 0 for one in lengths)
    assert exploring.condition == IDLE
    assert judge(IDLE, turns=80, seeds=[1, 2]) == (lengths, exploring)


def test_both_models_meet_each_load_and_profile() -> None:
    names = [(one.model, one.name) for one in conditions()]
    assert len(set(names)) == len(names) == 22
    assert sum(not one.profile_is_right for one in conditions()) == 8
