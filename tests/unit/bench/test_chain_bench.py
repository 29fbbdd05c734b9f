"""The bench measures what it says; how long that takes is nobody's assertion."""

from __future__ import annotations

from contraflow.bench.chain import measure


def test_every_cost_is_put_beside_the_bare_hash() -> None:
    costs = list(measure(320, rounds=1))
    assert len({cost.what for cost in costs}) == len(costs) > 3
    assert {cost.tokens for cost in costs} == {320}
    assert all(cost.ratio > 0 and cost.microseconds_per_1000 > 0 for cost in costs)
