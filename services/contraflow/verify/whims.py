"""Plans whose last word is drawn: what a router may do with a handle, whatever it is good for."""

from __future__ import annotations

from collections import Counter
from random import Random

from contraflow.core.handle_use import HandleUse, by_size
from contraflow.core.plan import Decision, PlanReason
from contraflow.verify.shape import BLOCK


class Whims:
    """Of all that is granted a ``share`` is kept, released or pulled in part; ``seen`` counts."""

    def __init__(self, seed: int, seen: Counter[str]) -> None:
        # A source of its own: a world without whims stays what it was.
        self._random = Random(f"{seed}/whims")
        self.share = self._random.choice((0.0, 0.0, 0.1, 0.4))
        self._seen = seen

    def use(self, num_tokens: int, least: int) -> HandleUse:
        """As ``DecideUse``."""
        draw = self._random
        if draw.random() >= self.share:
            return by_size(num_tokens, least)
        kind = draw.choice(("KEPT", "RELEASED", "CUT"))
        self._seen[f"use {kind}"] += 1
        if kind == "CUT":
            return HandleUse(pull_blocks=draw.randint(0, num_tokens // BLOCK + 1))
        return HandleUse(Decision.RECOMPUTE, PlanReason.BELOW_THRESHOLD, release=kind == "RELEASED")
