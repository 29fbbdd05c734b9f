"""Distributions: their means, their bounds."""

from __future__ import annotations

from random import Random
from statistics import fmean, median

import pytest

from contraflow.bench.multiturn.distributions import (
    Constant,
    Distribution,
    Lognormal,
    Poisson,
    Uniform,
    Zipf,
)


def drawn(distribution: Distribution, count: int = 4000) -> list[int]:
    random = Random(5)
    return [distribution.draw(random) for _ in range(count)]


@pytest.mark.parametrize(
    ("distribution", "mean"),
    [
        (Constant(500), 500.0),
        (Uniform(120, 160), 140.0),
        (Uniform(0.5, 9.5), 5.0),
        (Lognormal.around(1000), 1000.0),
        (Lognormal.around(1000, 0.6), 1000.0),
        (Poisson(10), 10.0),
        # zeta(3) ÷ zeta(4)
        (Zipf(4.0), 1.11063),
    ],
)
def test_the_mean_is_the_distributions(distribution: Distribution, mean: float) -> None:
    assert fmean(drawn(distribution)) == pytest.approx(mean, rel=0.05)


def test_the_median_is_its_share_of_the_average() -> None:
    assert median(drawn(Lognormal.around(1000, 0.6))) == pytest.approx(600, rel=0.05)


def test_both_ends_of_a_span_are_drawn() -> None:
    assert set(drawn(Uniform(12, 14))) == {12, 13, 14}


@pytest.mark.parametrize(
    "distribution", [Lognormal.around(1000, most=900), Poisson(10, most=8), Zipf(1.1, most=5)]
)
def test_nothing_is_above_the_bound(distribution: Distribution) -> None:
    numbers = drawn(distribution)
    bound = max(numbers)
    assert bound == {"Lognormal": 900, "Poisson": 8, "Zipf": 5}[type(distribution).__name__]


def test_nearly_flat_zipf_ends() -> None:
    assert min(drawn(Zipf(1.0001, most=50), 50)) >= 1
