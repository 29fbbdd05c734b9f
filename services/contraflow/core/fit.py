"""Durations as a sum of terms, learnt from what was measured. Robust, and as sure as it says.

A duration is the sum of features, each times a coefficient. The coefficients start from a prior
that may be ten times off, all together or each for itself. While conditions last, all that was
measured counts; once the latest measurements contradict it, they count for more than all before.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from contraflow.core.least_squares import solve_system

_HALF_LIFE = 40  # observations of one size
_HALF_LIFE_OF_ALL = 400  # observations
_HALF_LIFE_SECONDS = 1800.0
_DRIFT_SECONDS = 1800.0  # unobserved for so long, conditions are as uncertain as at first
_NOISE = 0.15  # the relative spread that is expected
_NOISE_WEIGHT = 10.0  # in observations, by which that is believed
_PRIOR_SPREAD = math.log(15) / 2  # two of them are the factor by which a prior may be off
_SHAPE_SPREAD = 2.5  # of the coefficients, relative to what they are off by together
_PRIOR_WEIGHT = 1.5  # in observations
_LEVEL = 0.3  # of the weight: one quick observation reaches it, one slow one does not
_FAR = math.log(2.5)  # off by so much is an outlier if it is slow, and a change if it is quick
_FAR_SPREADS = 3.0  # and by so much, as far as they scatter
_RECENT = 7  # observations by which a change is seen
_RUN = 3  # of them in succession say how large it is
_MOST_OFF = 4.0  # spreads that each of them counts
_CHANGED = 11.5  # spreads that they are off by together
_LEAST_SPREAD = 0.1
_KEPT_AT_CHANGE = 5.0  # in observations, of all that was known
_LEAST_SHARE = 0.02  # of its prior, below which no coefficient falls
_ROUNDS = 12
_MANY, _SELDOM = 100, 4  # observations of one condition, and how often it is solved then
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
    late: float  # log of how many times longer than expected it took


@dataclass(slots=True)
class _Size:
    """The mean of what was measured of about one size; a sum of terms holds for means as well."""

    shares: tuple[float, ...]
    seconds: float
    weight: float
    number: int
    now: float

    def at(self, number: int, now: float) -> float:
        """The weight that is left."""
        passed = (number - self.number) / _HALF_LIFE_OF_ALL + (now - self.now) / _HALF_LIFE_SECONDS
        left: float = 0.5 ** max(0.0, passed)
        return self.weight * left


@dataclass(frozen=True, slots=True)
class _Solution:
    factors: tuple[float, ...]  # by which the prior's coefficients are multiplied
    level: float
    information: tuple[tuple[float, ...], ...]  # inverse covariance of factors / level


class Fit:
    """One duration. ``prior``: a coefficient for each feature, in seconds, all positive.

    There are two features at least; the second is the size, in tokens or bytes. Learning and
    telling take a time that does not grow with what was observed.
    """

    def __init__(self, prior: Sequence[float]) -> None:
        """Raises ValueError for a coefficient that is not positive."""
        if not all(0 < one < math.inf for one in prior):
            raise ValueError("the prior's coefficients must be positive")
        self._prior = tuple(prior)
        # By size: what is done rarely is not forgotten over what is done each time.
        self._sizes: dict[int, _Size] = {}
        self._recent: deque[_Observation] = deque(maxlen=_RECENT)
        self._count = 0
        self._changed_at = 0  # in the same count
        self._newest = 0.0
        self._squares, self._squares_weight = _NOISE**2 * _NOISE_WEIGHT, _NOISE_WEIGHT
        self._solution: _Solution | None = None

    def observe(self, features: Sequence[float], seconds: float, now: float) -> None:
        """Learn from one measurement. ``now`` in seconds, of a clock that only goes forward.

        What can not be a duration (zero, negative, not finite) is passed over.
        """
        shares = self._shares(features)
        if not (0 < seconds < math.inf and min(shares) >= 0 and 0 < sum(shares) < math.inf):
            return
        late = math.log(seconds / _dot(shares, self._found.factors))
        size = round(math.log2(max(features[1], 1)))
        one = _Observation(shares, size, seconds, late)
        self._count += 1
        self._newest = max(now, self._newest)
        self._recent.append(one)
        # Nothing is much faster than it can be, while much may hold it up: a single fast one is
        # believed, a single slow one is not.
        changed = [one] if late < -self._far else self._contradicting()
        if changed:
            self._change(changed)
        elif late < self._far:
            self._add(one)
            self._scatter(late)
        # Of many, one more changes little.
        same = self._count - self._changed_at
        if same < _MANY or same % _SELDOM == 0:
            self._solution = self._solve()

    def seconds(self, features: Sequence[float]) -> float:
        """As ``expect``, without the error."""
        return _dot(self._shares(features), self._found.factors)

    def expect(self, features: Sequence[float], now: float) -> Expected:
        """How long it takes. Longer unobserved is less sure; no features take no time."""
        shares = self._shares(features)
        if not any(shares):
            return Expected(0.0)
        found = self._found
        seconds = _dot(shares, found.factors)
        variance = _dot(shares, solve_system(found.information, shares))
        idle = now - self._newest if self._count else 0.0
        relative = variance * (found.level / seconds) ** 2 + max(0.0, idle) / _DRIFT_SECONDS
        return Expected(seconds, seconds * min(math.sqrt(relative), _PRIOR_SPREAD))

    @property
    def coefficients(self) -> tuple[float, ...]:
        """As they are known now, in seconds."""
        return self._shares(self._found.factors)

    @property
    def _found(self) -> _Solution:
        if self._solution is None:
            self._solution = self._solve()
        return self._solution

    def _shares(self, features: Sequence[float]) -> tuple[float, ...]:
        return tuple(a * b for a, b in zip(features, self._prior, strict=True))

    @property
    def _spread(self) -> float:
        return math.sqrt(self._squares / self._squares_weight)

    @property
    def _far(self) -> float:
        return max(_FAR, _FAR_SPREADS * self._spread)

    def _contradicting(self) -> list[_Observation]:
        """The latest observations, if they say together that conditions have changed."""
        spread = max(self._spread, _LEAST_SPREAD)
        off = [max(-_MOST_OFF, min(_MOST_OFF, one.late / spread)) for one in self._recent]
        if abs(sum(off)) < _CHANGED:
            return []
        sign = math.copysign(1.0, sum(off))
        run = list(takewhile(lambda one: sign * one.late > spread, reversed(self._recent)))
        return run if len(run) >= _RUN else list(self._recent)

    def _change(self, latest: Sequence[_Observation]) -> None:
        """All took longer or shorter by one factor, as far as is known: what is not measured
        again soon keeps its proportion to what is."""
        usual = sorted(one.late for one in latest)[len(latest) // 2]
        before = sum(known.at(self._count, self._newest) for known in self._sizes.values())
        for known in self._sizes.values():
            known.seconds *= math.exp(usual)
            known.weight *= min(1.0, _KEPT_AT_CHANGE / max(before, _KEPT_AT_CHANGE))
        for one in latest:
            if one.late - usual < self._far:
                self._add(one)
                self._scatter(one.late - usual)
        self._recent.clear()
        self._changed_at = self._count

    def _scatter(self, late: float) -> None:
        self._squares = self._squares * 0.5 ** (1 / _HALF_LIFE) + late**2
        self._squares_weight = self._squares_weight * 0.5 ** (1 / _HALF_LIFE) + 1

    def _add(self, one: _Observation) -> None:
        known = self._sizes.get(one.size)
        left = known.at(self._count, self._newest) * 0.5 ** (1 / _HALF_LIFE) if known else 0.0
        share = 1 / (left + 1)
        shares, seconds = one.shares, one.seconds
        if known:
            shares = tuple(a + (b - a) * share for a, b in zip(known.shares, shares, strict=True))
            seconds = known.seconds + (seconds - known.seconds) * share
        self._sizes[one.size] = _Size(shares, seconds, left + 1, self._count, self._newest)

    def _solve(self) -> _Solution:
        seen = list(self._sizes.values())
        weights = [one.at(self._count, self._newest) for one in seen]
        ratios = [one.seconds / sum(one.shares) for one in seen]
        level = _quantile([(1.0, _PRIOR_WEIGHT), *zip(ratios, weights, strict=True)], _LEVEL)
        factors = (level,) * len(self._prior)
        before = self._solution
        if before and abs(math.log(before.level / level)) < _ANOTHER_LEVEL:
            factors = before.factors
        for _ in range(_ROUNDS):
            information, right = _normal_equations(seen, weights, factors, level, self._spread)
            found = tuple(
                level * max(one, _LEAST_SHARE) for one in solve_system(information, right)
            )
            settled = all(abs(a - b) < 1e-3 * a for a, b in zip(found, factors, strict=True))
            factors = found
            if settled:
                break
        return _Solution(factors, level, tuple(map(tuple, information)))


def _normal_equations(
    seen: Sequence[_Size],
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
    for one, weight in zip(seen, weights, strict=True):
        expected = _dot(one.shares, factors)
        precision = weight / spread**2
        row = [share * level / expected for share in one.shares]
        for i in range(count):
            right[i] += precision * row[i] * one.seconds / expected
            for j in range(count):
                matrix[i][j] += precision * row[i] * row[j]
    return matrix, right


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
