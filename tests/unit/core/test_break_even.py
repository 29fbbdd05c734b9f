"""Pull or recompute, decided by what was measured."""

from __future__ import annotations

import pytest

from contraflow.core.break_even import BreakEven, Choice
from contraflow.core.cost import CostProfile
from contraflow.sim.decision import (
    DECODE,
    GLM,
    HANDSHAKE,
    NOISE,
    PREFILL,
    QWEN,
    RULES,
    Load,
    Turn,
    World,
    by_bucket,
    excess,
    excess_of,
    play,
    tie,
)

LAUNCH = 0.02
MODELS = {"dense": QWEN, "experts": GLM}
SEEDS = range(4)
models = pytest.mark.parametrize("costs", MODELS.values(), ids=MODELS)


def choose(model: BreakEven, pullable: int = 4000, own: int = 0, draw: float = 0.99) -> Choice:
    return model.choose(
        PREFILL, DECODE, pullable=pullable, own=own, prompt=pullable + 150, now=0.0, draw=draw
    )


def best_threshold(turns: list[Turn]) -> float:
    return min(excess_of(rule, turns) for rule in RULES.values())


def test_a_long_history_is_pulled_and_a_short_one_is_not() -> None:
    assert choose(BreakEven(QWEN), pullable=16_000).pulls
    assert not choose(BreakEven(QWEN), pullable=160).pulls


def test_both_are_told_with_their_errors() -> None:
    choice = choose(BreakEven(QWEN))
    assert choice.pull is not None
    pulling = QWEN.pull_seconds(4000) + LAUNCH + QWEN.compute_seconds(150, 4000)
    assert choice.pull.seconds == pytest.approx(pulling)
    assert choice.recompute.seconds == pytest.approx(LAUNCH + QWEN.compute_seconds(4150, 0))
    assert choice.pull.error > 0 < choice.recompute.error


@pytest.mark.parametrize("own", [4000, 4100])
def test_what_the_prefill_engine_has_is_not_pulled(own: int) -> None:
    choice = choose(BreakEven(QWEN), own=own)
    assert (choice.pulls, choice.explores, choice.pull) == (False, False, None)
    assert choice.recompute.seconds < choose(BreakEven(QWEN)).recompute.seconds


@models
def test_the_least_pull_is_where_the_choice_turns(costs: CostProfile) -> None:
    model = BreakEven(costs)
    least = model.least(PREFILL, DECODE, 8000)
    assert 100 < least < 2000
    for missing in (least - 1, least):
        choice = choose(model, pullable=8000, own=8000 - missing)
        assert choice.pulls is (missing == least)


def test_what_never_pays_is_pulled_from_more_tokens_than_there_are() -> None:
    assert BreakEven(QWEN).least(PREFILL, DECODE, 100) == 101


def test_asking_changes_nothing() -> None:
    model = BreakEven(World(QWEN).slower_link(10).costs)
    asked = [choose(model, pullable=16_000, draw=0.0) for _ in range(200)]
    assert asked[0].explores
    assert set(asked) == {asked[0]}


def test_what_is_taken_counts() -> None:
    model = BreakEven(World(QWEN).slower_link(10).costs)
    explored = choose(model, pullable=16_000, draw=0.0)
    model.took(PREFILL, DECODE, explored)
    assert explored.explores
    assert not choose(model, pullable=16_000, draw=0.0).explores


def test_only_what_is_missing_counts() -> None:
    assert choose(BreakEven(QWEN), pullable=8000).pulls
    assert not choose(BreakEven(QWEN), pullable=8000, own=7900).pulls


def test_a_handshake_is_not_learnt() -> None:
    model = BreakEven(QWEN)
    before = choose(model)
    model.pulled(PREFILL, DECODE, 4000, 4000 * QWEN.bytes_per_token, HANDSHAKE, now=0.0)
    assert choose(model) == before


def test_a_first_pull_that_is_quick_is_learnt() -> None:
    model = BreakEven(World(QWEN).slower_link(10).costs)
    assert not choose(model, pullable=2000).pulls
    model.pulled(PREFILL, DECODE, 2000, 2000 * QWEN.bytes_per_token, 0.03, now=0.0)
    assert choose(model, pullable=2000).pulls


def test_the_transfer_of_a_first_pull_is_learnt() -> None:
    model = BreakEven(World(QWEN).slower_link(10).costs)
    moved = 16_000 * QWEN.bytes_per_token
    model.pulled(PREFILL, DECODE, 16_000, moved, HANDSHAKE, now=0.0, transfer=0.075)
    pull = choose(model, pullable=16_000).pull
    assert pull is not None
    assert pull.seconds < 0.4


def test_the_bytes_of_a_token_are_learnt() -> None:
    model = BreakEven(CostProfile(42_000, 3.2e-5, 0.021, QWEN.bytes_per_token * 10, 57e9))
    before = choose(model).pull
    model.pulled(PREFILL, DECODE, 4000, 4000 * QWEN.bytes_per_token, HANDSHAKE, now=0.0)
    after = choose(model).pull
    assert before is not None
    assert after is not None
    assert before.seconds - after.seconds == pytest.approx(9 * 4000 * QWEN.bytes_per_token / 57e9)


def test_links_and_engines_are_learnt_apart_and_forgotten() -> None:
    model = BreakEven(QWEN)
    prior = choose(model)
    for now in range(20):
        model.computed(PREFILL, 4000, 0, 2.0, now)
        model.pulled(PREFILL, DECODE, 4000, 4000 * QWEN.bytes_per_token, 1.0, now)
    other = model.choose("p2", DECODE, pullable=4000, own=0, prompt=4150, now=0.0, draw=0.99)
    assert other == prior
    assert choose(model).recompute.seconds > 1
    model.forget(PREFILL)
    assert choose(model) == prior


@models
def test_a_single_outlier_does_not_move_the_decision(costs: CostProfile) -> None:
    world, model = World(costs), BreakEven(costs)
    sizes = (160, 320, 640, 1280, 2560, 5120)
    for now in range(40):
        size = sizes[now % len(sizes)]
        pulling = costs.pull_seconds(size)
        model.pulled(PREFILL, DECODE, size, size * costs.bytes_per_token, pulling, now)
        model.computed(PREFILL, size, 0, world.computing(0, size), now)
    before = [choose(model, size).pulls for size in sizes]
    assert len(set(before)) == 2
    moved = 1280 * costs.bytes_per_token
    model.pulled(PREFILL, DECODE, 1280, moved, 100 * costs.pull_seconds(1280), 40)
    model.computed(PREFILL, 1280, 0, 100 * world.computing(0, 1280), 40)
    assert [choose(model, size).pulls for size in sizes] == before


@models
@pytest.mark.parametrize(
    "load", [Load(), Load(outliers=0.02), Load(own=0.9)], ids=["usual", "outliers", "cache"]
)
def test_each_length_is_decided_as_by_an_oracle(costs: CostProfile, load: Load) -> None:
    turns = [
        one for seed in SEEDS for one in play(costs, lambda _: World(costs), 250, seed, load)[50:]
    ]
    assert excess(turns) < 0.001
    for same_length in by_bucket(turns).values():
        assert excess(same_length) < 0.01
        assert excess(same_length) <= best_threshold(same_length) + tie(NOISE, len(same_length))


@models
def test_the_longer_it_lasts_the_better_it_is(costs: CostProfile) -> None:
    turns = [one for seed in SEEDS for one in play(costs, lambda _: World(costs), 600, seed)[300:]]
    for same_length in by_bucket(turns).values():
        assert excess(same_length) <= best_threshold(same_length) + 0.003


def test_no_fixed_threshold_does_as_well_on_different_engines_and_links() -> None:
    worlds = [World(QWEN), World(GLM), World(QWEN).slower_link(5), World(GLM).slower_engine(0.2)]
    turns: list[Turn] = []
    for true in worlds:
        turns += play(true.costs, lambda _, always=true: always, 150, 1)[50:]  # type: ignore[misc]
    assert excess(turns) < best_threshold(turns) / 3


@models
@pytest.mark.parametrize("times", [0.1, 10])
@pytest.mark.parametrize("of", ["link", "engine"])
def test_a_profile_ten_times_off_is_corrected_within_fifty_turns(
    costs: CostProfile, times: float, of: str
) -> None:
    world = World(costs)
    wrong = world.slower_link(times) if of == "link" else world.slower_engine(times)
    later = [one for seed in SEEDS for one in play(wrong.costs, lambda _: world, 250, seed)[50:]]
    for same_length in by_bucket(later).values():
        assert excess(same_length) < 0.03
        assert excess(same_length) <= best_threshold(same_length) + tie(NOISE, len(same_length))


@models
@pytest.mark.parametrize(("noise", "most"), [(0.3, 0.02), (0.6, 0.08)])
def test_what_scatters_much_is_decided_well_all_the_same(
    costs: CostProfile, noise: float, most: float
) -> None:
    turns = [
        one
        for seed in SEEDS
        for one in play(costs, lambda _: World(costs), 250, seed, Load(noise=noise))[50:]
    ]
    assert excess(turns) < most


@models
@pytest.mark.parametrize("of", ["link", "engine"])
def test_load_that_comes_and_goes_is_followed(costs: CostProfile, of: str) -> None:
    world = World(costs)
    busy = world.slower_link(4) if of == "link" else world.slower_engine(4)
    turns = [
        one
        for seed in SEEDS
        for one in play(costs, lambda turn: busy if turn // 50 % 2 else world, 400, seed)[50:]
    ]
    assert excess(turns) < 0.05
    assert excess(turns) < best_threshold(turns)


@models
def test_a_link_that_becomes_slower_is_followed_within_fifty_turns(costs: CostProfile) -> None:
    world = World(costs)
    slow = world.slower_link(5)
    turns = [
        one
        for seed in SEEDS
        for one in play(costs, lambda turn: slow if turn >= 100 else world, 250, seed)[150:]
    ]
    assert excess(turns) < 0.03


@models
def test_a_link_that_was_given_up_is_used_again_once_it_is_quick(costs: CostProfile) -> None:
    world = World(costs)
    slow = world.slower_link(5)
    for seed in SEEDS:
        turns = play(costs, lambda turn: slow if 60 <= turn < 160 else world, 400, seed)
        assert excess(turns[320:]) < 0.03


@models
@pytest.mark.parametrize("times", [0.1, 1, 10])
@pytest.mark.parametrize("of", ["link", "engine"])
def test_it_explores_seldom_and_cheaply(costs: CostProfile, times: float, of: str) -> None:
    world = World(costs)
    wrong = world.slower_link(times) if of == "link" else world.slower_engine(times)
    for seed in SEEDS:
        explored, lost, best = 0, 0.0, 0.0
        for number, one in enumerate(play(wrong.costs, lambda _: world, 300, seed), 1):
            best += one.best
            if one.choice.explores:
                explored, lost = explored + 1, lost + one.taken - one.best
            assert explored <= max(1, 0.02 * number)
            assert lost <= 0.01 * best


def test_nothing_but_the_draw_makes_two_runs_differ() -> None:
    assert play(QWEN, lambda _: World(QWEN), 60, 7) == play(QWEN, lambda _: World(QWEN), 60, 7)
