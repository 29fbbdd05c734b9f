"""What becomes of a handle once its size is known."""

from __future__ import annotations

import pytest

from contraflow.core.handle_use import HandleUse, by_size
from contraflow.core.plan import Decision, PlanReason


@pytest.mark.parametrize("least", [1, 64, 1000])
def test_what_turns_out_to_be_too_small_is_kept(least: int) -> None:
    kept = HandleUse(Decision.RECOMPUTE, PlanReason.BELOW_THRESHOLD)
    assert by_size(least - 1, least) == kept
    assert not kept.release
    assert by_size(least, least) == HandleUse(min_pull_tokens=least)
