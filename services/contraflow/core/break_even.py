"""Pull or recompute: which is sooner, by what was measured of one model's engines and links.

Recomputing takes ``setup + a · tokens + b · tokens · context``, learnt for each prefill engine;
a pull takes ``setup + bytes / bandwidth``, learnt for each link from a decode engine to a prefill
engine. Both start from a named profile. Times and randomness are arguments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from contraflow.core.cost import CostProfile
from contraflow.core.fit import Expected, Fit

PASS_SECONDS = 0.02
"""Of launching a prefill of any size, until measured: profiles say nothing of it."""

_EXPLORED_SHARE = 0.02  # of turns; a first pull need not wait for it
# Of their seconds, as is expected: what is little known may well take thrice that.
_EXPLORED_COST = 0.003
_WORTH = 0.8  # at best, of what is known to be better
_TELLING = 2.0  # times as long as a pull of nothing: then it shows the link's bandwidth
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
        self,
        prefill_id: str,
        decode_id: str,
        tokens: int,
        moved: int,
        seconds: float,
        now: float,
        *,
        transfer: float = math.inf,
    ) -> None:
        """``moved`` bytes, all ranks together, of the KV of ``tokens``, took so long, from claim
        to last byte; ``transfer`` seconds of it were the transfer itself, where that is known."""
        if tokens > 0 and moved > 0:
            self._bytes_per_token = moved / tokens
            self._link(prefill_id, decode_id).observe(moved, seconds, transfer, now)

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
        """Choose for a turn of ``prompt`` tokens. Changes nothing: ``took`` counts the turn.

        The decode engine has the KV of its first ``pullable`` tokens, the prefill engine of the
        first ``own``. ``draw`` is random, uniform in [0, 1); 1 never explores. A link's first
        exploration is a pull at any time; beyond that, at most 2 % of its turns explore, at 0.3 %
        of what all take.
        """
        pullable = min(pullable, prompt)
        recompute = self._computing(prefill_id, own, prompt, now)
        if pullable <= own:
            return Choice(pulls=False, explores=False, pull=None, recompute=recompute)
        link = self._link(prefill_id, decode_id)
        moved = (pullable - own) * self._bytes_per_token
        moving = link.expect(moved, now)
        pull = moving + self._computing(prefill_id, pullable, prompt, now)
        pulls = pull.seconds < recompute.seconds
        better, other = (pull, recompute) if pulls else (recompute, pull)
        telling = moving.seconds > _TELLING * link.expect(0.0, now).seconds
        explores = link.budget.explores(better, other, draw, pull=not pulls, telling=telling)
        return Choice(pulls is not explores, explores, pull, recompute)

    def expect(
        self,
        prefill_id: str,
        decode_id: str,
        *,
        local: int,
        pulled: int,
        computed: int,
        now: float,
    ) -> Expected:
        """The prefill leg of a prompt of so many tokens: found, pulled and then computed."""
        moving = self._link(prefill_id, decode_id).expect(pulled * self._bytes_per_token, now)
        start = local + pulled
        computing = self._computing(prefill_id, start, start + computed, now)
        return moving + computing if pulled else computing

    def seconds(
        self, prefill_id: str, decode_id: str, *, local: int, pulled: int, computed: int
    ) -> float:
        """As ``expect``, without the error."""
        features = _computing(computed, local + pulled)
        computing = self._prefill(prefill_id).seconds(features) if computed else 0.0
        if not pulled:
            return computing
        link = self._link(prefill_id, decode_id)
        return link.fit.seconds((1.0, pulled * self._bytes_per_token)) + computing

    def took(self, prefill_id: str, decode_id: str, choice: Choice) -> None:
        """Count a turn that goes as was chosen on the link's account."""
        if choice.pull is not None:
            self._link(prefill_id, decode_id).budget.count(choice)

    def least(self, prefill_id: str, decode_id: str, pullable: int) -> int:
        """The fewest tokens that are pulled sooner than computed, missing at the end of
        ``pullable``; more than these if not even all of them are."""
        setup, second_per_byte = self._link(prefill_id, decode_id).fit.coefficients
        _, token, context = self._prefill(prefill_id).coefficients
        # setup + moved = computed: 0 = setup - linear · n + context / 2 · n². All else costs the
        # same either way.
        linear = token + context * pullable - second_per_byte * self._bytes_per_token
        root = linear**2 - 2 * context * setup
        if linear <= 0 or root < 0:
            return pullable + 1
        return min(math.ceil(2 * setup / (linear + math.sqrt(root))), pullable + 1)

    def forget(self, engine_id: str) -> None:
        """The engine is gone for good: drop what was learnt of it."""
        self._prefills.pop(engine_id, None)
        self._links = {key: link for key, link in self._links.items() if engine_id not in key}

    def _computing(self, prefill_id: str, start: int, end: int, now: float) -> Expected:
        if end <= start:
            return Expected(0.0)
        return self._prefill(prefill_id).expect(_computing(end - start, start), now)

    def _prefill(self, prefill_id: str) -> Fit:
        if prefill_id not in self._prefills:
            token = 1 / self._profile.prompt_tokens_per_second
            # A coefficient that is zero could never be corrected.
            context = max(self._profile.context_coefficient, 1e-9) * token
            self._prefills[prefill_id] = Fit((PASS_SECONDS, token, context))
        return self._prefills[prefill_id]

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

    turns: int = 0
    seconds: float = 0.0
    explored: int = 0
    lost: float = 0.0

    def explores(
        self, better: Expected, other: Expected, draw: float, *, pull: bool, telling: bool
    ) -> bool:
        """Whether the next turn does. Of recomputing something is seen at each turn, of a link
        only if it is used: its first exploration waits for nothing but a pull that tells much."""
        first = pull and telling and not self.explored
        if draw >= (_FIRST_CHANCE if first else _EXPLORE_CHANCE):
            return False
        if other.low >= _WORTH * better.seconds:
            return False
        loss = other.seconds - better.seconds
        left = _EXPLORED_COST * (self.seconds + better.low) - self.lost
        share = self.explored + 1 <= _EXPLORED_SHARE * (self.turns + 1)
        return first or (
            share and loss <= (left if pull else min(left, _MOST_LOST * better.seconds))
        )

    def count(self, choice: Choice) -> None:
        """Account for one turn."""
        pull = choice.pull or choice.recompute
        better, other = sorted((pull, choice.recompute), key=lambda one: one.seconds)
        self.turns += 1
        self.seconds += better.low  # as far as is sure
        if choice.explores:
            # The first pull is an outlay that the others need not wait for.
            self.lost += other.seconds - better.seconds if self.explored or not choice.pulls else 0
            self.explored += 1


@dataclass(slots=True)
class _Link:
    fit: Fit
    contacted: bool = False
    budget: _Budget = field(default_factory=_Budget)

    def expect(self, moved: float, now: float) -> Expected:
        return self.fit.expect((1.0, moved), now)

    def observe(self, moved: float, seconds: float, transfer: float, now: float) -> None:
        first, self.contacted = not self.contacted, True
        if first:
            # It contains the engines' handshake, of seconds, which the transfer itself does not.
            # What the profile has of a link is taken to be off by one factor: a set-up thought
            # too short is measured by the next pull, one thought too long keeps from pulling.
            expected = self.fit.seconds((1.0, moved))
            seconds = min(seconds, expected * transfer / self.fit.seconds((0.0, moved)))
            if seconds > expected:
                return
        self.fit.observe((1.0, moved), seconds, now)
