"""Samples of seconds, and what they come to."""

from __future__ import annotations

import math
from collections.abc import Sequence


def quantile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that at least ``share`` of all, in (0, 1], do not exceed."""
    return sorted(samples)[math.ceil(len(samples) * share) - 1]
