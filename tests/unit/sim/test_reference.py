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
    fit,
    terms,
)


@pytest.mark.parametrize("point", [*SHORT, *LONG], ids=lambda p: f"{p.model.name}-{p.quantity}")
def test_every_end_point_is_within_fifteen_percent(point: EndPoint) -> None:
    assert terms(point).seconds(fit()) == pytest.approx(point.seconds, rel=0.15)


def test_the_fit_has_seen_no_long_prompt_and_fewer_parameters_than_points() -> None:
    assert max(point.tokens for point in SHORT) < min(point.tokens for point in LONG)
    assert fit() == fit(SHORT)
    assert len(PARAMETERS) <= 5 < len(SHORT)


def test_all_parameters_are_possible() -> None:
    assert all(value > 0 for value in astuple(fit()))
    assert fit().weight_read_slowdown > 1


def test_a_fit_finds_the_parameters_that_made_the_points() -> None:
    made_of = Hardware(3.0, 0.01, 1e-6, 0.05)
    made = [EndPoint(p.model, p.quantity, p.tokens, terms(p).seconds(made_of)) for p in SHORT]
    assert astuple(fit(made)) == pytest.approx(astuple(made_of))


@pytest.mark.parametrize("model", [QWEN3_32B, GLM_5_FP8])
def test_a_pull_gains_more_on_longer_prompts(model: Architecture) -> None:
    hardware = fit()

    def gain(tokens: int) -> float:
        off, on = (
            terms(EndPoint(model, quantity, tokens, 1.0)).seconds(hardware)
            for quantity in (Quantity.OFF, Quantity.ON)
        )
        return off - on

    assert gain(2_000) < gain(8_000) < gain(20_000)


def test_kv_and_pieces_are_those_of_the_models() -> None:
    assert QWEN3_32B.rank_kv_bytes * 8 == 262_144
    transfer = terms(EndPoint(QWEN3_32B, Quantity.TRANSFER, 16_150, 1.0))
    assert (transfer.pulls, transfer.descriptors, transfer.weight_reads) == (1, 128_000, 0)


def test_too_few_rows_determine_nothing() -> None:
    with pytest.raises(ValueError, match="do not determine"):
        solve([[1.0, 2.0], [2.0, 4.0]], [1.0, 2.0])
