"""Means, ratios and how sure they are. Pure: equal seeds give equal intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from contraflow.bench.samples import quantile

CONFIDENCE = 0.95
_ROUNDS = 2000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its confidence interval; None where there are too few samples for one."""

    value: float
    low: float | None = None
    high: float | None = None


def mean(groups: Sequence[Sequence[float]], seed: int) -> Estimate:
    """The mean of all samples, at least one. ``groups`` are drawn as a whole: the turns of one
    conversation are not independent of each other."""
    return ratio([(sum(group), float(len(group))) for group in groups if group], seed)


def ratio(sums: Sequence[tuple[float, float]], seed: int) -> Estimate:
    """Sum of the first ÷ sum of the second, over groups; the second's must be above 0.

    The interval is the percentile bootstrap over groups; it needs two of them, and with fewer
    than about ten it is too narrow.
    """
    value = _ratio(sums)
    if len(sums) < 2:
        return Estimate(value)
    random = Random(seed)
    drawn = sorted(_ratio(random.choices(sums, k=len(sums))) for _ in range(_ROUNDS))
    tail = (1 - CONFIDENCE) / 2
    return Estimate(value, quantile(drawn, tail), quantile(drawn, 1 - tail))


def _ratio(sums: Sequence[tuple[float, float]]) -> float:
    return sum(one for one, _ in sums) / sum(other for _, other in sums)
