"""Pull or recompute, on worlds that the profile knows little of, and on any measurements."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from contraflow.core.break_even import BreakEven
from contraflow.core.fit import Fit
from contraflow.sim.decision import DECODE, GLM, PREFILL, QWEN, World, excess, play

off = st.floats(-1, 1).map(lambda power: 10**power)
durations = st.floats(1e-6, 1e6)


@settings(max_examples=15, derandomize=True)
@given(st.sampled_from([QWEN, GLM]), off, off, st.floats(0.01, 0.04), st.integers(0, 1000))
def test_whatever_the_profile_has_wrong_the_turns_after_fifty_are_decided_well(
    costs: object, link: float, engine: float, launch: float, seed: int
) -> None:
    assert costs in (QWEN, GLM)
    world = World(QWEN if costs is QWEN else GLM, launch)
    wrong = world.slower_link(link).slower_engine(engine)
    later = play(wrong.costs, lambda _: world, 150, seed)[50:]
    assert excess(later) < 0.1


@given(st.lists(st.tuples(st.floats(0, 1e12), durations, st.floats(0, 1e7)), max_size=30))
def test_expectations_are_positive_and_finite(seen: list[tuple[float, float, float]]) -> None:
    fit = Fit((0.02, 1e-9))
    for size, seconds, now in seen:
        fit.observe((1.0, size), seconds, now)
    for size in (0.0, 1.0, 1e6, 1e12):
        expected = fit.expect((1.0, size), 1e7)
        assert 0 < expected.seconds < math.inf
        assert 0 <= expected.error < math.inf
        assert 0 < expected.low <= expected.seconds


@given(
    st.lists(st.tuples(st.integers(1, 10**6), durations), max_size=10),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.integers(1, 10**6),
    st.floats(0, 1, exclude_max=True),
)
def test_the_sooner_one_is_chosen_unless_the_choice_explores(
    seen: list[tuple[int, float]], pullable: int, own: int, prompt: int, draw: float
) -> None:
    model = BreakEven(QWEN)
    for number, (tokens, seconds) in enumerate(seen):
        model.computed(PREFILL, tokens, 0, seconds, number)
        model.pulled(PREFILL, DECODE, tokens, tokens * 1000, seconds, number)
    choice = model.choose(
        PREFILL, DECODE, pullable=pullable, own=own, prompt=prompt, now=20.0, draw=draw
    )
    if choice.pull is None:
        assert min(pullable, prompt) <= own
        assert not choice.pulls
    else:
        sooner = choice.pull.seconds < choice.recompute.seconds
        assert choice.pulls is (sooner is not choice.explores)
