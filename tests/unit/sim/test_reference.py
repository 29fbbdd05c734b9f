"""The published end points against the model that is fitted on half of them."""

from __future__ import annotations

from dataclasses import astuple

import pytest

from contraflow.core.least_squares import solve
from contraflow.sim.reference import (
    GLM_5_FP8,
    LONG,
    PARAMETERS,
    QWEN3_32B,
    SHORT,
    Architecture,
    EndPoint,
    Hardware,
    Quantity,
    compute,
    fit,
    measured_prompts,
    pull,
    terms,
)

OFF = [point for point in LONG if point.quantity is Quantity.OFF]
PULLS = [point for point in LONG if point.quantity is not Quantity.OFF]


def name(point: EndPoint) -> str:
    return f"{point.model.name}-{point.quantity}-{point.prefix}"


@pytest.mark.parametrize("point", SHORT, ids=name)
def test_the_short_lengths_are_met(point: EndPoint) -> None:
    assert terms(point).seconds(fit()) == pytest.approx(point.seconds, rel=0.05)


@pytest.mark.parametrize("point", OFF, ids=name)
def test_computing_a_long_prompt_is_predicted(point: EndPoint) -> None:
    assert terms(point).seconds(fit()) == pytest.approx(point.seconds, rel=0.15)


@pytest.mark.parametrize("point", PULLS, ids=name)
def test_a_long_pull_takes_longer_than_is_predicted_but_not_twice(point: EndPoint) -> None:
    assert 0.5 * point.seconds < terms(point).seconds(fit()) < point.seconds


def test_the_fit_has_seen_no_long_prompt_and_fewer_parameters_than_points() -> None:
    assert max(point.tokens for point in SHORT) < min(point.tokens for point in LONG)
    assert fit() == fit(SHORT)
    assert len(PARAMETERS) <= 5 < len(SHORT)


def test_a_fifth_of_the_prompts_is_warm_up_and_some_first_ones_are_left() -> None:
    # Two clients with five conversations each: four rounds, and one prompt of the fifth. Of the
    # 42, the first eight are left out: all of them first prompts.
    assert measured_prompts() == {0: 2, 1: 10, 2: 10, 3: 10, 4: 2}


def test_the_mean_prompt_is_that_of_the_measured_ones() -> None:
    prompts = [
        500 + 2_000 + 150 + earlier * 450
        for earlier, count in {0: 2, 1: 10, 2: 10, 3: 10, 4: 2}.items()
        for _ in range(count)
    ]
    assert SHORT[0].tokens == sum(prompts) / len(prompts)


def test_first_prompts_are_computed_whichever_way_the_others_go() -> None:
    # Two of 34 have nothing to pull: at least that share of what OFF computes is in ON as well.
    on, off = (terms(EndPoint(QWEN3_32B, q, 24_000, 1.0)) for q in (Quantity.ON, Quantity.OFF))
    first = compute(QWEN3_32B, 500 + 24_000 + 150, context=0)
    assert on.ideal_compute > 2 / 34 * first.ideal_compute
    assert on.ideal_compute < 0.1 * off.ideal_compute


def test_all_parameters_are_possible() -> None:
    assert all(value > 0 for value in astuple(fit()))
    assert min(fit().weight_read_slowdown, fit().tensor_slowdown) > 1


def test_a_fit_finds_the_parameters_that_made_the_points() -> None:
    made_of = Hardware(2.0, 3.0, 0.01, 1e-6, 0.05)
    made = [EndPoint(p.model, p.quantity, p.prefix, terms(p).seconds(made_of)) for p in SHORT]
    assert astuple(fit(made)) == pytest.approx(astuple(made_of))


@pytest.mark.parametrize("model", [QWEN3_32B, GLM_5_FP8])
def test_a_pull_gains_more_on_longer_prompts(model: Architecture) -> None:
    hardware = fit()

    def gain(prefix: int) -> float:
        off, on = (
            terms(EndPoint(model, quantity, prefix, 1.0)).seconds(hardware)
            for quantity in (Quantity.OFF, Quantity.ON)
        )
        return off - on

    assert gain(2_000) < gain(8_000) < gain(20_000)


def test_kv_and_pieces_are_those_of_the_models() -> None:
    assert QWEN3_32B.rank_kv_bytes * 8 == 262_144
    transfer = pull(QWEN3_32B, 16_000)
    assert (transfer.pulls, transfer.descriptors, transfer.weight_reads) == (1, 128_000, 0)


def test_too_few_rows_determine_nothing() -> None:
    with pytest.raises(ValueError, match="do not determine"):
        solve([[1.0, 2.0], [2.0, 4.0]], [1.0, 2.0])
