"""Pull or recompute: which is sooner, by what was measured of one model's engines and links.

Recomputing takes ``setup + a · tokens + b · tokens · context``, learnt for each prefill engine;
a pull takes ``setup + bytes / bandwidth``, learnt for each link from a decode engine to a prefill
engine. Both start from a named profile. Times and randomness are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from contraflow.core.cost import CostProfile
from contraflow.core.fit import Expected, Fit

_PASS_SECONDS = 0.02  # of launching a prefill of any size; profiles say nothing of it
_FIRST_EXPLORATIONS = 2.0
_EXPLORED_SHARE = 0.01  # of turns
_EXPLORED_COST = 0.01  # of their seconds
_WORTH = 0.8  # at best, of what is known to be better
_MOST_LOST = 0.3  # of what a pull takes, to recompute once instead
_FIRST_CHANCE = 0.5
_EXPLORE_CHANCE = 0.25  # of a turn that may, so that no pattern of turns decides which


@dataclass(frozen=True, slots=True)
class Choice:
    """What to do, and what either is expected to take, the whole prefill leg.

    ``explores``: the other one is expected sooner, but is little known. ``pull`` is None where
    there is nothing to pull.
    """

    pulls: bool
    explores: bool
    pull: Expected | None
    recompute: Expected


class BreakEven:
    """Of one model. Engines go by their ids, which name one life of an engine."""

    def __init__(self, profile: CostProfile) -> None:
        """``profile`` may be ten times off either way."""
        self._profile = profile
        self._bytes_per_token = float(profile.bytes_per_token)
        self._prefills: dict[str, Fit] = {}
        self._links: dict[tuple[str, str], _Link] = {}

    def computed(
        self, prefill_id: str, tokens: int, context: int, seconds: float, now: float
    ) -> None:
        """``tokens`` that follow ``context`` tokens took so long to compute, waiting left out."""
        if tokens > 0:
            self._prefill(prefill_id).observe(_computing(tokens, context), seconds, now)

    def pulled(
        self, prefill_id: str, decode_id: str, tokens: int, moved: int, seconds: float, now: float
    ) -> None:
        """``moved`` bytes, all ranks together, of the KV of ``tokens``, took so long, from claim
        to last byte."""
        if tokens > 0 and moved > 0:
            self._bytes_per_token = moved / tokens
            self._link(prefill_id, decode_id).observe(moved, seconds, now)

    def choose(
        self,
        prefill_id: str,
        decode_id: str,
        *,
        pullable: int,
        own: int,
        prompt: int,
        now: float,
        draw: float,
    ) -> Choice:
        """Choose for a turn of ``prompt`` tokens, and count it on the link's account.

        The decode engine has the KV of its first ``pullable`` tokens, the prefill engine of the
        first ``own``. ``draw`` is random, uniform in [0, 1). A link's first two explorations are
        free; after these at most 1 % of its turns explore, at 1 % of what all its turns take.
        """
        pullable = min(pullable, prompt)
        recompute = self._computing(prefill_id, own, prompt, now)
        if pullable <= own:
            return Choice(pulls=False, explores=False, pull=None, recompute=recompute)
        link = self._link(prefill_id, decode_id)
        moved = (pullable - own) * self._bytes_per_token
        pull = link.expect(moved, now) + self._computing(prefill_id, pullable, prompt, now)
        pulls = pull.seconds < recompute.seconds
        better, other = (pull, recompute) if pulls else (recompute, pull)
        explores = link.budget.explores(better, other, draw, pull=not pulls)
        return Choice(pulls is not explores, explores, pull, recompute)

    def forget(self, engine_id: str) -> None:
        """The engine is gone for good: drop what was learnt of it."""
        self._prefills.pop(engine_id, None)
        self._links = {key: link for key, link in self._links.items() if engine_id not in key}

    def _computing(self, prefill_id: str, start: int, end: int, now: float) -> Expected:
        if end <= start:
            return Expected(0.0)
        return self._prefill(prefill_id).expect(_computing(end - start, start), now)

    def _prefill(self, prefill_id: str) -> Fit:
        token = 1 / self._profile.prompt_tokens_per_second
        # A coefficient that is zero could never be corrected.
        context = max(self._profile.context_coefficient, 1e-9) * token
        return self._prefills.setdefault(prefill_id, Fit((_PASS_SECONDS, token, context)))

    def _link(self, prefill_id: str, decode_id: str) -> _Link:
        key = (prefill_id, decode_id)
        if key not in self._links:
            setup, rate = self._profile.pull_setup_seconds, self._profile.bytes_per_second
            self._links[key] = _Link(Fit((max(setup, 1e-6), 1 / rate)))
        return self._links[key]


def _computing(tokens: int, context: int) -> tuple[float, float, float]:
    return 1.0, float(tokens), tokens * (context + tokens / 2)


@dataclass(slots=True)
class _Budget:
    """What a link may spend on turns that are worse than known ones, as far as is expected."""

    turns: float = _FIRST_EXPLORATIONS
    seconds: float = 0.0
    free: int = int(_FIRST_EXPLORATIONS)

    def explores(self, better: Expected, other: Expected, draw: float, *, pull: bool) -> bool:
        """Decide and account for one turn."""
        self.turns = min(self.turns + _EXPLORED_SHARE, _FIRST_EXPLORATIONS)
        self.seconds += _EXPLORED_COST * better.seconds
        loss = other.seconds - better.seconds
        # Of recomputing something is seen at each turn, of a link only if it is used.
        free = pull and self.free > 0
        most = self.seconds if pull else min(self.seconds, _MOST_LOST * better.seconds)
        affordable = free or loss <= most
        worth = other.low < _WORTH * better.seconds
        chance = _FIRST_CHANCE if free else _EXPLORE_CHANCE
        if not (worth and affordable) or self.turns < 1 or draw >= chance:
            return False
        self.turns -= 1
        if free:
            self.free -= 1
        else:
            self.seconds -= loss
        return True


@dataclass(slots=True)
class _Link:
    fit: Fit
    contacted: bool = False
    budget: _Budget = field(default_factory=_Budget)

    def expect(self, moved: float, now: float) -> Expected:
        return self.fit.expect((1.0, moved), now)

    def observe(self, moved: float, seconds: float, now: float) -> None:
        first, self.contacted = not self.contacted, True
        # The first pull contains the engines' handshake, of seconds: all that it can show is
        # that pulls are quicker than was thought.
        if first and seconds > self.expect(moved, now).seconds:
            return
        self.fit.observe((1.0, moved), seconds, now)
