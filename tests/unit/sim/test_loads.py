"""The reference's nodes under other loads: what must hold of any of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from contraflow.sim.loads import Load, Outcome, kv_bytes, kv_memory, simulate
from contraflow.sim.reference import (
    GLM_5_FP8,
    HOST_SECONDS_PER_TOKEN,
    NEW_TOKENS,
    QWEN3_32B,
    REPLY_TOKENS,
    Architecture,
    EndPoint,
    Quantity,
    answer,
    compute,
    fit,
    pull,
)

HARDWARE = fit()
QWEN = Load(QWEN3_32B, 24_000, bidirectional=True)
GLM = Load(GLM_5_FP8, 20_000, bidirectional=True)
MANY: dict[str, Any] = {"clients": 12, "think_seconds": 5.0}
MODELS = pytest.mark.parametrize("load", [QWEN, GLM], ids=lambda load: load.model.name)


def play(load: Load) -> Outcome:
    return simulate(load, HARDWARE)


def mean_ttft(outcome: Outcome) -> float:
    return sum(turn.ttft for turn in outcome.turns) / len(outcome.turns)


def alone(load: Load, earlier: int) -> float:
    """What the model of the published end points has for one prompt and nothing beside it."""
    model, tokens = load.model, EndPoint(load.model, Quantity.ON, load.prefix, 0).prompt(earlier)
    before = tokens - NEW_TOKENS if earlier else 0
    held = before // model.block_tokens * model.block_tokens
    found = answer(model, tokens, new=tokens - held)
    if load.bidirectional and held:
        found += pull(model, held) + compute(model, tokens - held, context=held)
    else:
        found += compute(model, tokens, context=0)
    return found.seconds(HARDWARE)


@MODELS
@pytest.mark.parametrize("bidirectional", [False, True])
def test_who_is_alone_waits_as_long_as_the_published_ones_do(
    load: Load, bidirectional: bool
) -> None:
    load = replace(load, bidirectional=bidirectional, clients=1)
    turns = play(load).turns
    assert [turn.pulled for turn in turns] == [bidirectional and turn.earlier > 0 for turn in turns]
    assert [turn.ttft for turn in turns] == pytest.approx(
        [alone(load, turn.earlier) for turn in turns]
    )


@MODELS
def test_a_node_does_one_read_at_a_time(load: Load) -> None:
    together = replace(load, clients=2, prefill=2, prompts=1, think_seconds=0.0)
    first, second = sorted(turn.ttft for turn in play(together).turns)
    tokens = 500 + load.prefix + NEW_TOKENS
    reading = pull(load.model, tokens).seconds(HARDWARE) - HARDWARE.pull_setup_seconds
    assert first == pytest.approx(alone(load, 0))
    assert second == pytest.approx(first + reading)


@MODELS
def test_a_load_has_one_outcome_and_its_seed_another(load: Load) -> None:
    load = replace(load, **MANY)
    assert play(load) == play(load)
    assert play(replace(load, seed=1)).turns != play(load).turns


@MODELS
@pytest.mark.parametrize("caching", [False, True])
def test_where_nothing_can_be_pulled_it_makes_no_difference(load: Load, caching: bool) -> None:
    on = replace(load, prompts=1, conversations=3, caching=caching, **MANY)
    off = replace(on, bidirectional=False)
    assert play(on).turns == play(off).turns


@MODELS
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_more_prefill_nodes_make_nobody_wait_longer_in_the_mean(
    load: Load, bidirectional: bool, seed: int
) -> None:
    # Where there is room for all: what is pushed out depends on who comes when.
    load = replace(load, prefix=8_000, bidirectional=bidirectional, seed=seed, **MANY)
    outcomes = [play(replace(load, prefill=count)) for count in (1, 2, 4, 8)]
    assert not any(outcome.pushed_out for outcome in outcomes)
    waits = [mean_ttft(outcome) for outcome in outcomes]
    assert waits == sorted(waits, reverse=True)
    assert waits[0] > waits[-1]


@MODELS
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_prefix_caching_makes_nobody_wait_longer_in_the_mean(
    load: Load, bidirectional: bool, seed: int
) -> None:
    load = replace(load, bidirectional=bidirectional, seed=seed, **MANY)
    assert mean_ttft(play(replace(load, caching=True))) <= mean_ttft(play(load))


@MODELS
@pytest.mark.parametrize("seed", range(5))
def test_pulls_are_a_gain_where_prefill_nodes_keep_nothing(load: Load, seed: int) -> None:
    on = play(replace(load, seed=seed, **MANY))
    off = play(replace(load, seed=seed, bidirectional=False, **MANY))
    assert on.later_ttft(0.5) < off.later_ttft(0.5)
    assert on.prefill_seconds < off.prefill_seconds
    assert on.turns_per_second > off.turns_per_second


@MODELS
def test_every_prompt_is_answered_once_and_after_those_before_it(load: Load) -> None:
    turns = play(replace(load, conversations=2, decode=2, **MANY)).turns
    for conversation in range(12 * 2):
        assert [t.earlier for t in turns if t.conversation == conversation] == [0, 1, 2, 3, 4]
    assert len(turns) == 12 * 2 * 5


@MODELS
@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("caching", [False, True])
def test_what_is_held_is_let_go(load: Load, nodes: int, caching: bool) -> None:
    outcome = play(replace(load, decode=nodes, prefill=nodes, caching=caching, **MANY))
    assert outcome.held_at_end == 0
    assert 0 < outcome.held_peak <= 0.5 * kv_memory(load.model)


@MODELS
def test_one_way_holds_nothing(load: Load) -> None:
    outcome = play(replace(load, bidirectional=False, **MANY))
    assert (outcome.held_peak, outcome.held_byte_seconds, outcome.pushed_out) == (0, 0, 0)


@MODELS
def test_a_conversation_that_does_not_come_back_is_held_until_it_is_too_old(load: Load) -> None:
    tokens = 500 + load.prefix + NEW_TOKENS + REPLY_TOKENS
    outcome = play(replace(load, clients=1, prompts=1, retention_seconds=100))
    assert outcome.held_peak == tokens * kv_bytes(load.model)
    assert outcome.held_byte_seconds == pytest.approx(100 * outcome.held_peak)


@MODELS
def test_who_comes_back_too_late_is_computed(load: Load) -> None:
    late = play(replace(load, think_seconds=1_000, retention_seconds=1e-3))
    assert not any(turn.pulled for turn in late.turns)
    assert late.held_at_end == 0


@MODELS
def test_what_there_is_no_room_for_is_not_held_and_computed(load: Load) -> None:
    outcome = play(replace(load, retained_share=1e-6, **MANY))
    assert outcome.held_peak == 0
    assert outcome.pushed_out == len(outcome.turns)
    assert not any(turn.pulled for turn in outcome.turns)


@MODELS
def test_what_is_answered_has_the_memory_before_what_is_held(load: Load) -> None:
    # Two of these contexts do not fit on one node: the first is let go when the second comes.
    prefix = int(0.7 * kv_memory(load.model) / kv_bytes(load.model))
    load = replace(load, prefix=prefix, clients=1, conversations=2, prompts=1, think_seconds=0.0)
    outcome = play(replace(load, retained_share=1.0, retention_seconds=10_000))
    tokens = 500 + prefix + NEW_TOKENS
    until_it_comes = 2 * HOST_SECONDS_PER_TOKEN * tokens + HARDWARE.request_seconds
    until_it_comes += compute(load.model, tokens, context=0).seconds(HARDWARE)
    assert outcome.pushed_out == 1
    assert outcome.held_byte_seconds / outcome.held_peak == pytest.approx(until_it_comes + 10_000)


@MODELS
def test_a_prefill_node_computes_no_longer_than_time_has_passed(load: Load) -> None:
    busy = replace(load, bidirectional=False, think_seconds=0.0, clients=12)
    for count in (1, 2):
        outcome = play(replace(busy, prefill=count))
        assert 0.5 * outcome.seconds * count < outcome.prefill_seconds <= outcome.seconds * count


def test_memory_is_what_the_gpus_have_beside_the_weights() -> None:
    def contexts(model: Architecture) -> float:
        return kv_memory(model) / kv_bytes(model)

    assert contexts(QWEN3_32B) == pytest.approx(3.6e6, rel=0.05)
    assert contexts(GLM_5_FP8) == pytest.approx(340e3, rel=0.05)
