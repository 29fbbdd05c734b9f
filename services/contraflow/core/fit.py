"""Durations as a sum of terms, learnt from what was measured. Robust, and as sure as it says.

A duration is the sum of features, each times a coefficient. The coefficients start from a prior
that may be ten times off, all together or each for itself, and follow the newest observations.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from contraflow.core.least_squares import solve_system

_KEPT = 6  # observations of one size
_HALF_LIFE = 4  # observations of one size
_HALF_LIFE_OF_ALL = 40  # observations
_HALF_LIFE_SECONDS = 600.0
_NOISE = 0.15  # the least relative spread that is believed
_PRIOR_SPREAD = math.log(15) / 2  # two of them are the factor by which a prior may be off
_SHAPE_SPREAD = 2.5  # of the coefficients, relative to what they are off by together
_DRIFT_SECONDS = 1800.0  # unobserved for so long, conditions are as uncertain as at first
_PRIOR_WEIGHT = 1.5  # in observations
_LEVEL = 0.3  # of the weight: one quick observation reaches it, one slow one does not
_OUTLIER = math.log(2.5)  # as much slower than expected
_QUICKER = 2.5
_LEAST_SHARE = 0.02  # of its prior, below which no coefficient falls
_ROUNDS = 12
_ANOTHER_LEVEL = math.log(1.5)  # from where the last solution is no start for the next


@dataclass(frozen=True, slots=True)
class Expected:
    """A duration and its standard error, both in seconds."""

    seconds: float
    error: float = 0.0

    def __add__(self, other: Expected) -> Expected:
        return Expected(self.seconds + other.seconds, math.hypot(self.error, other.error))

    @property
    def low(self) -> float:
        """What it may be at best: two standard errors less, as a factor."""
        return self.seconds * math.exp(-2 * self.error / self.seconds) if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class _Observation:
    shares: tuple[float, ...]  # of the features, in seconds as the prior has it
    size: int
    seconds: float
    now: float
    number: int


@dataclass(frozen=True, slots=True)
class _Solution:
    factors: tuple[float, ...]  # by which the prior's coefficients are multiplied
    level: float
    information: tuple[tuple[float, ...], ...]  # inverse covariance of factors / level


class Fit:
    """One duration. ``prior``: a coefficient for each feature, in seconds, all positive.

    There are two features at least; the second is the size, in tokens or bytes.
    """

    def __init__(self, prior: Sequence[float]) -> None:
        """Raises ValueError for a coefficient that is not positive."""
        if not all(0 < one < math.inf for one in prior):
            raise ValueError("the prior's coefficients must be positive")
        self._prior = tuple(prior)
        # By size: what is done rarely is not forgotten over what is done each time.
        self._seen: dict[int, deque[_Observation]] = {}
        self._count = 0
        self._newest = 0.0
        self._solution: _Solution | None = None
        self._stale = True

    def observe(self, features: Sequence[float], seconds: float, now: float) -> None:
        """Learn from one measurement. ``now`` in seconds, of a clock that only goes forward.

        What can not be a duration (zero, negative, not finite) is passed over.
        """
        shares = self._shares(features)
        if 0 < seconds < math.inf and min(shares) >= 0 and 0 < sum(shares) < math.inf:
            if self._count and seconds < self.expect(features, now).seconds / _QUICKER:
                # It was held up before and is no longer: what was seen then is outdated.
                self._count += 2 * _HALF_LIFE_OF_ALL
            self._count += 1
            self._newest = max(now, self._newest)
            size = round(math.log2(max(features[1], 1)))
            kept = self._seen.setdefault(size, deque(maxlen=_KEPT))
            kept.append(_Observation(shares, size, seconds, now, self._count))
            self._stale = True

    def expect(self, features: Sequence[float], now: float) -> Expected:
        """How long it takes. Longer unobserved is less sure; no features take no time."""
        shares = self._shares(features)
        if not any(shares):
            return Expected(0.0)
        if self._solution is None or self._stale:
            self._solution, self._stale = self._solve(), False
        found = self._solution
        seconds = _dot(shares, found.factors)
        variance = _dot(shares, solve_system(found.information, shares))
        idle = now - self._newest if self._count else 0.0
        relative = variance * (found.level / seconds) ** 2 + max(0.0, idle) / _DRIFT_SECONDS
        return Expected(seconds, seconds * min(math.sqrt(relative), _PRIOR_SPREAD))

    def _shares(self, features: Sequence[float]) -> tuple[float, ...]:
        return tuple(a * b for a, b in zip(features, self._prior, strict=True))

    def _weighted(self) -> list[tuple[_Observation, float]]:
        return [
            (
                one,
                0.5
                ** (
                    (len(kept) - 1 - i) / _HALF_LIFE
                    + (self._count - one.number) / _HALF_LIFE_OF_ALL
                    + (self._newest - one.now) / _HALF_LIFE_SECONDS
                ),
            )
            for kept in self._seen.values()
            for i, one in enumerate(kept)
        ]

    def _solve(self) -> _Solution:
        weighted = self._weighted()
        seen, weights = [one for one, _ in weighted], [weight for _, weight in weighted]
        ratios = [one.seconds / sum(one.shares) for one in seen]
        # Nothing is much faster than it can be, while much may hold it up: a single fast one is
        # believed, a single slow one is not.
        level = _quantile([(1.0, _PRIOR_WEIGHT), *zip(ratios, weights, strict=True)], _LEVEL)
        factors = (level,) * len(self._prior)
        before = self._solution
        if before and abs(math.log(before.level / level)) < _ANOTHER_LEVEL:
            factors = before.factors
        for _ in range(_ROUNDS):
            kept = _without_outliers(seen, weights, factors)
            information, right = _normal_equations(seen, kept, factors, level, _NOISE)
            found = tuple(
                level * max(one, _LEAST_SHARE) for one in solve_system(information, right)
            )
            settled = all(abs(a - b) < 1e-4 * a for a, b in zip(found, factors, strict=True))
            factors = found
            if settled:
                break
        spread = _spread(seen, kept, factors)
        information, _ = _normal_equations(seen, kept, factors, level, spread)
        return _Solution(factors, level, tuple(map(tuple, information)))


def _without_outliers(
    seen: Sequence[_Observation], weights: Sequence[float], factors: Sequence[float]
) -> list[float]:
    """The weights, zero for what is far slower than is expected and than others of its size."""
    late = [math.log(one.seconds / _dot(one.shares, factors)) for one in seen]
    by_size: dict[int, list[float]] = {}
    for one, delay in zip(seen, late, strict=True):
        by_size.setdefault(one.size, []).append(delay)
    usual = {size: _usual(delays) for size, delays in by_size.items()}
    return [
        weight if delay <= _OUTLIER + usual[one.size] else 0.0
        for one, delay, weight in zip(seen, late, weights, strict=True)
    ]


def _usual(delays: Sequence[float]) -> float:
    """The lower median, so that one of two decides nothing; what is early is not late."""
    middle = sorted(delays)[(len(delays) - 1) // 2]
    return max(0.0, middle) if len(delays) > 1 else 0.0


def _normal_equations(
    seen: Sequence[_Observation],
    weights: Sequence[float],
    factors: Sequence[float],
    level: float,
    spread: float,
) -> tuple[list[list[float]], list[float]]:
    """Of relative errors, for the factors in units of the level, which the prior puts at one."""
    count = len(factors)
    prior = 1 / _SHAPE_SPREAD**2
    matrix = [[prior * (i == j) for j in range(count)] for i in range(count)]
    right = [prior] * count
    precision = 1 / spread**2
    for one, weight in zip(seen, weights, strict=True):
        expected = _dot(one.shares, factors)
        row = [share * level / expected for share in one.shares]
        for i in range(count):
            right[i] += weight * precision * row[i] * one.seconds / expected
            for j in range(count):
                matrix[i][j] += weight * precision * row[i] * row[j]
    return matrix, right


def _spread(
    seen: Sequence[_Observation], weights: Sequence[float], factors: Sequence[float]
) -> float:
    total = sum(weights)
    if total < _PRIOR_WEIGHT:
        return _NOISE
    squares = sum(
        weight * math.log(one.seconds / _dot(one.shares, factors)) ** 2
        for one, weight in zip(seen, weights, strict=True)
    )
    return min(max(_NOISE, math.sqrt(squares / total)), 1.0)


def _quantile(values: Iterable[tuple[float, float]], share: float) -> float:
    """The least value that this share of all weight is not above."""
    ordered = sorted(values)
    left = share * sum(weight for _, weight in ordered)
    for value, weight in ordered:
        left -= weight
        if left <= 0:
            return value
    return ordered[-1][0]


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
