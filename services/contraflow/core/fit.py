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
from operator import mul

from contraflow.core.least_squares import inverse

_HALF_LIFE = 40  # observations of one kind
_FADE = 0.5 ** (1 / _HALF_LIFE)
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
# And by so much, as far as they scatter: at three, what scatters by 30 % seems to change now and
# then, and each time what was known is nearly lost.
_FAR_SPREADS = 4.5
_RECENT = 7  # observations by which a change is seen
_RUN = 3  # of them in succession say how large it is
_MOST_OFF = 4.0  # spreads that each of them counts
_CHANGED = 11.5  # spreads that they are off by together
_LEAST_SPREAD = 0.1
# Three that were held up in succession look like a change, and a link that is thought to be a
# hundred times slower is not used again to learn better.
_MOST_AT_ONCE = math.log(10)
_KEPT_AT_CHANGE = 5.0  # in observations, of all that was known
_LEAST_SHARE = 0.02  # of its prior, below which no coefficient falls
_ROUNDS = 12
# Solved again for such a share of new observations, or for so many.
_NEWS, _OFTEN = 1 / 8, 16
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
    kind: tuple[int, ...]
    seconds: float
    late: float  # log of how many times longer than expected it took
    unsure: float  # standard error of what was expected, relative to it


@dataclass(slots=True)
class _Kind:
    """The mean of what was measured of about the same features; a sum of terms holds for means as
    well. What one feature costs is told by those that differ in it, so each counts."""

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
    covariance: Sequence[Sequence[float]]  # of factors / level

    def error(self, shares: Sequence[float]) -> float:
        """Of what is expected, in seconds."""
        squares = sum(
            [one * _dot(row, shares) for one, row in zip(shares, self.covariance, strict=True)]
        )
        return self.level * math.sqrt(squares)


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
        # By kind: what is done rarely is not forgotten over what is done each time.
        self._kinds: dict[tuple[int, ...], _Kind] = {}
        self._recent: deque[_Observation] = deque(maxlen=_RECENT)
        self._count = 0
        self._changed_at = 0  # in the same count
        self._solved_at = 0  # as well
        self._newest = 0.0
        self._squares, self._squares_weight = _NOISE**2 * _NOISE_WEIGHT, _NOISE_WEIGHT
        self._spread = _NOISE
        self._solution: _Solution | None = None

    def observe(self, features: Sequence[float], seconds: float, now: float) -> None:
        """Learn from one measurement. ``now`` in seconds, of a clock that only goes forward.

        What can not be a duration (zero, negative, not finite) is passed over.
        """
        shares = self._shares(features)
        if not (0 < seconds < math.inf and min(shares) >= 0 and 0 < sum(shares) < math.inf):
            return
        found = self._found
        expected = _dot(shares, found.factors)
        late = math.log(seconds / expected)
        unsure = min(found.error(shares) / expected, _PRIOR_SPREAD)
        kind = tuple([round(math.log2(max(one, 1))) for one in features[1:]])
        one = _Observation(shares, kind, seconds, late, unsure)
        self._count += 1
        self._newest = max(now, self._newest)
        self._recent.append(one)
        # Nothing is much faster than it can be, while much may hold it up: a single fast one is
        # believed, a single slow one is not. Where little is known, a fast one is no change: what
        # is known would be scaled by it, for a coefficient that was not told yet.
        far = self._far + 2 * unsure
        known = self._count - self._changed_at > _RECENT
        changed = [one] if known and late < -far else self._contradicting()
        if changed:
            self._change(changed)
        elif late < far:
            self._add(one)
            self._scatter(late, unsure)
        # Of many, one more changes little, and solving is most of what learning takes.
        news = self._count - self._solved_at
        if changed or news >= min(_NEWS * (self._count - self._changed_at), _OFTEN):
            self._solve()

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
        idle = now - self._newest if self._count else 0.0
        relative = (found.error(shares) / seconds) ** 2 + max(0.0, idle) / _DRIFT_SECONDS
        return Expected(seconds, seconds * min(math.sqrt(relative), _PRIOR_SPREAD))

    @property
    def coefficients(self) -> tuple[float, ...]:
        """As they are known now, in seconds."""
        return self._shares(self._found.factors)

    @property
    def _found(self) -> _Solution:
        return self._solution or self._solve()

    def _shares(self, features: Sequence[float]) -> tuple[float, ...]:
        return tuple(map(mul, features, self._prior))

    @property
    def _far(self) -> float:
        return max(_FAR, _FAR_SPREADS * self._spread)

    def _contradicting(self) -> list[_Observation]:
        """The latest observations, if they say together that conditions have changed."""
        spread = max(self._spread, _LEAST_SPREAD)
        if abs(self._recent[-1].late) < spread:
            return []
        # What could hardly be told contradicts nothing.
        spreads = [one.late / math.hypot(spread, one.unsure) for one in self._recent]
        off = [max(-_MOST_OFF, min(_MOST_OFF, one)) for one in spreads]
        if abs(sum(off)) < _CHANGED:
            return []
        sign = math.copysign(1.0, sum(off))
        run = list(takewhile(lambda one: sign * one.late > spread, reversed(self._recent)))
        return run if len(run) >= _RUN else list(self._recent)

    def _change(self, latest: Sequence[_Observation]) -> None:
        """All took longer or shorter by one factor, as far as is known: what is not measured
        again soon keeps its proportion to what is."""
        most = _MOST_AT_ONCE if self._kinds else math.inf
        lates = sorted(one.late for one in latest)
        # Two that were held up and one that is a little late are no run of slow ones.
        usual = min(most, lates[0] if lates[0] > 0 else lates[len(lates) // 2])
        before = sum(known.at(self._count, self._newest) for known in self._kinds.values())
        for known in self._kinds.values():
            known.seconds *= math.exp(usual)
            known.weight *= min(1.0, _KEPT_AT_CHANGE / max(before, _KEPT_AT_CHANGE))
        for one in latest:
            if one.late - usual < self._far:
                self._add(one)
                self._scatter(one.late - usual, one.unsure)
        self._recent.clear()
        self._changed_at = self._count

    def _scatter(self, late: float, unsure: float) -> None:
        # What could hardly be told is off for that reason.
        usual = self._spread**2 / (self._spread**2 + unsure**2)
        self._squares = self._squares * _FADE + late**2 * usual
        self._squares_weight = self._squares_weight * _FADE + 1
        self._spread = math.sqrt(self._squares / self._squares_weight)

    def _add(self, one: _Observation) -> None:
        known = self._kinds.get(one.kind)
        if known is None:
            self._kinds[one.kind] = _Kind(one.shares, one.seconds, 1.0, self._count, self._newest)
            return
        left = known.at(self._count, self._newest) * _FADE
        old, new = left / (left + 1), 1 / (left + 1)
        known.shares = tuple(
            [old * a + new * b for a, b in zip(known.shares, one.shares, strict=True)]
        )
        known.seconds = old * known.seconds + new * one.seconds
        known.weight, known.number, known.now = left + 1, self._count, self._newest

    def _solve(self) -> _Solution:
        seen = list(self._kinds.values())
        weights = [one.at(self._count, self._newest) for one in seen]
        ratios = [one.seconds / sum(one.shares) for one in seen]
        level = _quantile([(1.0, _PRIOR_WEIGHT), *zip(ratios, weights, strict=True)], _LEVEL)
        factors = (level,) * len(self._prior)
        before = self._solution
        if before and abs(math.log(before.level / level)) < _ANOTHER_LEVEL:
            factors = before.factors
        for _ in range(_ROUNDS):
            information, right = _normal_equations(seen, weights, factors, level, self._spread)
            covariance = inverse(information)
            found = tuple([level * max(_dot(row, right), _LEAST_SHARE) for row in covariance])
            settled = all(abs(a - b) < 1e-3 * a for a, b in zip(found, factors, strict=True))
            factors = found
            if settled:
                break
        self._solved_at = self._count
        self._solution = _Solution(factors, level, covariance)
        return self._solution


def _normal_equations(
    seen: Sequence[_Kind],
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
        shares = one.shares
        unit = level / (spread * _dot(shares, factors))
        precision = weight * unit**2
        seconds = one.seconds / level
        for i in range(count):
            share = precision * shares[i]
            right[i] += share * seconds
            row = matrix[i]
            for j in range(i + 1):
                row[j] += share * shares[j]
    for i in range(count):
        for j in range(i):
            matrix[j][i] = matrix[i][j]
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
    total: float = sum(map(mul, a, b))
    return total
