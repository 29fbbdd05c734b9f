"""Growing, jittered delays between attempts."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Delays in seconds: each between half and all of a bound that doubles up to ``maximum``.

    ``draw`` gives uniform numbers in [0, 1).
    """

    initial: float = 0.1
    maximum: float = 5.0
    draw: Callable[[], float] = random.random
    _bound: float = 0.0

    def next(self) -> float:
        """The next delay."""
        self._bound = min(self.maximum, self._bound * 2 or self.initial)
        return self._bound * (0.5 + self.draw() / 2)

    def reset(self) -> None:
        """An attempt succeeded: start over."""
        self._bound = 0.0
