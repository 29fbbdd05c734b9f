"""A failing schedule made shorter: fewer turns, fewer faults, the same violation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from contraflow.verify.run import Result, Schedule

_MOST_RUNS = 60


class Minimiser:
    """``run`` runs a schedule; ``told`` hears of each one that still fails."""

    def __init__(self, run: Callable[[Schedule], Result], told: Callable[[Schedule], None]) -> None:
        self._run = run
        self._told = told
        self._left = _MOST_RUNS

    def shorten(self, result: Result) -> Schedule:
        """The shortest schedule found within some tens of runs."""
        invariants = {invariant for invariant, _ in result.violations}
        best, faults = result.schedule, len(result.begun)

        def fails(candidate: Schedule) -> bool:
            nonlocal best
            if self._left <= 0:
                return False
            self._left -= 1
            again = self._run(candidate)
            if not invariants & {invariant for invariant, _ in again.violations}:
                return False
            best = candidate
            self._told(candidate)
            return True

        while best.turns > 1 and fails(replace(best, turns=best.turns // 2)):
            pass
        self._leave_out(lambda: best, fails, faults)
        return best

    def _leave_out(
        self, best: Callable[[], Schedule], fails: Callable[[Schedule], bool], faults: int
    ) -> None:
        # Halves, quarters and so on: what is not needed goes.
        size = faults
        while size >= 1 and self._left > 0:
            for start in range(0, faults, size):
                skip = best().skip | frozenset(range(start, min(start + size, faults)))
                if skip != best().skip:
                    fails(replace(best(), skip=skip))
            size //= 2
