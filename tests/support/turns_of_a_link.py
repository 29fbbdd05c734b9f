"""Turns on one link whose true costs are known, played against a chooser that has to learn them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from contraflow.core.break_even import BreakEven, Choice
from contraflow.core.cost import CostProfile

PREFILL, DECODE = "p", "d"
BLOCK, NEW, HANDSHAKE = 16, 150, 3.0
NOISE = 0.1
THRESHOLDS = (64, 256, 1024, 4096, 0, math.inf)

QWEN = CostProfile(42_000, 3.2e-5, 0.021, 262_144, 57e9)
GLM = CostProfile(10_700, 1e-6, 0.021, 100_000, 18e9)


@dataclass(frozen=True)
class World:
    """What things really take. ``launch``: of a prefill of any size, seconds."""

    costs: CostProfile
    launch: float = 0.02

    def computing(self, start: int, end: int) -> float:
        """Tokens [start, end)."""
        if end <= start:
            return 0.0
        return self.launch + self.costs.compute_seconds(end - start, start)

    def slower_link(self, times: float) -> World:
        """The same with everything about a pull so many times slower."""
        costs = self.costs
        return replace(
            self,
            costs=replace(
                costs,
                pull_setup_seconds=costs.pull_setup_seconds * times,
                bytes_per_second=costs.bytes_per_second / times,
            ),
        )

    def slower_engine(self, times: float) -> World:
        """The same with every token so many times slower to compute."""
        rate = self.costs.prompt_tokens_per_second / times
        return replace(self, costs=replace(self.costs, prompt_tokens_per_second=rate))


@dataclass(frozen=True)
class Turn:
    prompt: int
    gap: int
    choice: Choice
    pull: float
    recompute: float

    @property
    def taken(self) -> float:
        return self.pull if self.choice.pulls else self.recompute

    @property
    def best(self) -> float:
        return min(self.pull, self.recompute)

    @property
    def bucket(self) -> int:
        """Prompts of up to twice a length."""
        return int(math.log2(self.prompt / 128))


def play(
    profile: CostProfile,
    world: Callable[[int], World],
    turns: int,
    seed: int,
    *,
    noise: float = NOISE,
    outliers: float = 0.0,
    own: float = 0.0,
) -> list[Turn]:
    """Play turns of about 220 to 23,000 tokens. ``world`` is told the turn's number.

    Measured times scatter by ``noise``, a share of ``outliers`` is 100 times too long, and of the
    pullable tokens the prefill engine has a random share of up to ``own`` itself.
    """
    chance, model, played = random.Random(seed), BreakEven(profile), list[Turn]()
    pulled_before = False

    def measured(seconds: float) -> float:
        held_up = 100 if chance.random() < outliers else 1
        return seconds * math.exp(chance.gauss(0, noise)) * held_up

    for number in range(turns):
        now, true = 3.0 * number, world(number)
        prompt = int(128 * 2 ** chance.uniform(0.8, 7.5))
        held = (prompt - NEW) // BLOCK * BLOCK
        mine = int(held * chance.random() * own) // BLOCK * BLOCK
        choice = model.choose(
            PREFILL, DECODE, pullable=held, own=mine, prompt=prompt, now=now, draw=chance.random()
        )
        model.took(PREFILL, DECODE, choice)
        gap = max(0, held - mine)
        moving = true.costs.pull_seconds(gap)
        rest = true.computing(max(held, mine), prompt)
        whole = true.computing(mine, prompt)
        if choice.pulls:
            shaking = 0.0 if pulled_before else HANDSHAKE
            pulled_before = True
            moved = gap * true.costs.bytes_per_token
            took = measured(moving)
            transfer = took - true.costs.pull_setup_seconds
            model.pulled(
                PREFILL, DECODE, gap, moved, took + shaking, now, transfer=max(0.0, transfer)
            )
            model.computed(PREFILL, prompt - held, held, measured(rest), now)
        else:
            model.computed(PREFILL, prompt - mine, mine, measured(whole), now)
        played.append(Turn(prompt, gap, choice, moving + rest, whole))
    return played


def excess(turns: Iterable[Turn]) -> float:
    """By what share longer than an oracle's."""
    turns = list(turns)
    return sum(one.taken for one in turns) / sum(one.best for one in turns) - 1


def best_threshold(turns: Iterable[Turn]) -> float:
    """The excess of the best fixed threshold, chosen knowing these very turns.

    Two of the thresholds are within a tenth of the two models' break-even.
    """
    turns = list(turns)
    least = min(
        sum(one.pull if one.gap and one.gap >= threshold else one.recompute for one in turns)
        for threshold in THRESHOLDS
    )
    return least / sum(one.best for one in turns) - 1


def told_apart(turns: Iterable[Turn]) -> float:
    """The least share by which measuring so many turns can tell that one of two ways is slower:
    two standard errors of their mean."""
    return 2 * NOISE / math.sqrt(len(list(turns)))
