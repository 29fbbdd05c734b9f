"""Quantiles of few samples."""

from __future__ import annotations

import pytest

from contraflow.bench.samples import quantile


@pytest.mark.parametrize(
    ("samples", "share", "expected"),
    [([3.0], 0.5, 3.0), ([3.0], 0.99, 3.0), ([4.0, 1.0, 2.0, 3.0], 0.5, 2.0),
     ([1.0, 2.0, 3.0], 0.5, 2.0), ([float(n) for n in range(1, 101)], 0.99, 99.0),
     ([1.0, 2.0], 1.0, 2.0)],
)  # fmt: skip
def test_a_quantile_is_a_sample(samples: list[float], share: float, expected: float) -> None:
    assert quantile(samples, share) == expected
