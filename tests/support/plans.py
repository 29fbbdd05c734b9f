"""What plans say."""

from __future__ import annotations

from contraflow.core.fleet import Engine
from contraflow.core.plan import Plan


def prefill_of(plan: Plan) -> Engine:
    """The engine of the prefill leg, which must be there."""
    assert plan.prefill is not None
    return plan.prefill
