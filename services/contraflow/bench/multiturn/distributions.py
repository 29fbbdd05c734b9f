"""Distributions of lengths, drawn with a given source of randomness. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Protocol

_LARGEST = 2**31


class Distribution(Protocol):
    """Something to draw whole numbers from."""

    def draw(self, random: Random) -> int:
        """One number."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """Always ``value``."""

    value: int

    def draw(self, random: Random) -> int:
        """``value``."""
        return self.value


@dataclass(frozen=True, slots=True)
class Uniform:
    """From ``low`` to ``high``, both included."""

    low: float
    high: float

    def draw(self, random: Random) -> int:
        """One number."""
        if self.low == int(self.low) and self.high == int(self.high):
            return random.randint(int(self.low), int(self.high))
        return round(random.uniform(self.low, self.high))


@dataclass(frozen=True, slots=True)
class Lognormal:
    """``mu`` and ``sigma`` are those of the logarithm; nothing above ``most``."""

    mu: float
    sigma: float
    most: int = _LARGEST

    @classmethod
    def around(cls, average: float, median_ratio: float = 0.85, most: int = _LARGEST) -> Lognormal:
        """By its average and, in (0, 1), the median's share of that."""
        median = average * median_ratio
        return cls(math.log(median), math.sqrt(-2 * math.log(median_ratio)), most)

    def draw(self, random: Random) -> int:
        """One number."""
        return min(self.most, round(random.lognormvariate(self.mu, self.sigma)))


@dataclass(frozen=True, slots=True)
class Zipf:
    """k with a probability of k ** -``alpha``, for ``alpha`` > 1; nothing above ``most``."""

    alpha: float
    most: int = _LARGEST

    def draw(self, random: Random) -> int:
        """One number, by rejection from the continuous power law (Devroye 1986, X.6)."""
        power = self.alpha - 1
        top = 2.0**power
        while True:
            log_k = -math.log(1 - random.random()) / power
            if log_k > math.log(_LARGEST):
                return self.most
            k = math.floor(math.exp(log_k))
            ratio = (1 + 1 / k) ** power
            if random.random() * k * (ratio - 1) / (top - 1) <= ratio / top:
                return min(self.most, k)


@dataclass(frozen=True, slots=True)
class Poisson:
    """With the expectation ``rate``; nothing above ``most``."""

    rate: float
    most: int = _LARGEST

    def draw(self, random: Random) -> int:
        """One number: arrivals within one unit of time."""
        count, at = 0, random.expovariate(1)
        while at < self.rate and count < self.most:
            count += 1
            at += random.expovariate(1)
        return count
