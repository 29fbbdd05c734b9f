"""What a turn does with the handle that was granted to it: the last word of its plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from contraflow.core.plan import Decision, PlanReason


@dataclass(frozen=True, slots=True)
class HandleUse:
    """With PULL the prefill engine pulls the leading ``pull_blocks`` blocks of the handle, as far
    as they are proven (None: all that are), less those of its own prefix cache; none if these hold
    fewer than ``min_pull_tokens`` tokens. The handle is spent.

    With RECOMPUTE it pulls nothing. Once it has said so the claim is given back: another turn may
    have the handle, or it is freed, with ``release``.
    """

    decision: Decision = Decision.PULL
    reason: PlanReason = PlanReason.HANDLE_AVAILABLE
    min_pull_tokens: int = 1
    pull_blocks: int | None = None
    release: bool = False


DecideUse = Callable[[int, int], HandleUse]
"""Called with the tokens of the handle, which only its owner knew before, and the fewest that are
worth a pull."""


def by_size(num_tokens: int, least: int) -> HandleUse:
    """Pulled if it has as many."""
    if num_tokens < least:
        return HandleUse(Decision.RECOMPUTE, PlanReason.BELOW_THRESHOLD)
    return HandleUse(min_pull_tokens=least)
