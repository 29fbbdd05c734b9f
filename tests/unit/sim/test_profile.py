"""The profiles against the figures that they stand for."""

from __future__ import annotations

import pytest

from contraflow.sim.profile import PROFILES


def test_the_reference_hardware_recomputes_and_pulls_as_was_measured() -> None:
    costs = PROFILES["p5en-h200-efa"]
    assert costs.prefill(0, 24_000) == pytest.approx(0.778, rel=0.05)
    new = 450 * costs.bytes_per_token
    pulled = costs.pull(24_000 * costs.bytes_per_token) + costs.pull(new) + costs.decode_step
    assert pulled == pytest.approx(0.460, rel=0.05)
    even = next(
        n for n in range(1, 5000) if costs.prefill(0, n) > costs.pull(n * costs.bytes_per_token)
    )
    assert even == pytest.approx(940, rel=0.15)


def test_a_prompt_costs_the_same_in_one_piece_and_in_two() -> None:
    for costs in PROFILES.values():
        parts = costs.prefill(0, 700) + costs.prefill(700, 1000)
        assert parts == pytest.approx(costs.prefill(0, 1000))


def test_instant_takes_no_time() -> None:
    costs = PROFILES["instant"]
    assert (costs.prefill(0, 10_000), costs.pull(2**40), costs.decode_step) == (0.0, 0.0, 0.0)
