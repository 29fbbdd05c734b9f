"""Turns on one link whose true costs are known, played against a chooser that has to learn them.

What is judged are the true costs of what was decided. Only what the chooser measures scatters, so
that no rule is better by luck. All times are of the prefill leg, in seconds: whatever else a first
token takes is the same either way, and would make differences look smaller.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from contraflow.core.break_even import BreakEven, Choice
from contraflow.core.cost import CostProfile

PREFILL, DECODE = "p", "d"
BLOCK, NEW, HANDSHAKE = 16, 150, 3.0
NOISE = 0.1
SHORTEST = 128
"""Tokens of a prompt, from which on lengths are told apart by doubling."""

RULES: Mapping[str, float] = {
    "64": 64, "256": 256, "1024": 1024, "4096": 4096, "always": 0, "never": math.inf,
}  # fmt: skip
"""Fixed thresholds, in tokens that the prefill engine lacks. Two of them are within a tenth of the
two models' break-even."""

# Break-even near 940 and 206 tokens, as in the published data.
QWEN = CostProfile(42_000, 3.2e-5, 0.021, 262_144, 57e9)
GLM = CostProfile(10_700, 1e-6, 0.021, 100_000, 18e9)
MODELS: Mapping[str, CostProfile] = {"Qwen3-32B": QWEN, "GLM-5-FP8": GLM}


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
class Load:
    """What turns meet. Measured times scatter by ``noise``, a share of ``outliers`` is 100 times
    too long, and the prefill engine has a random share of up to ``own`` of the history itself."""

    engine: float = 1.0
    link: float = 1.0
    noise: float = NOISE
    outliers: float = 0.0
    own: float = 0.0

    def on(self, world: World) -> World:
        """What things take under it."""
        return world.slower_engine(self.engine).slower_link(self.link)


@dataclass(frozen=True)
class Turn:
    """One turn as it was decided, and what either way truly takes, in seconds.

    ``gap``: tokens that could be pulled.
    """

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
        return int(math.log2(self.prompt / SHORTEST))


def play(
    profile: CostProfile,
    world: Callable[[int], World],
    turns: int,
    seed: int,
    load: Load = Load(),
) -> list[Turn]:
    """Play turns of about 220 to 23,000 tokens. ``world`` is told the turn's number and knows of
    all slowness; of ``load`` counts what scatters."""
    chance, model, played = random.Random(seed), BreakEven(profile), list[Turn]()
    pulled_before = False

    def measured(seconds: float) -> float:
        held_up = 100 if chance.random() < load.outliers else 1
        return seconds * math.exp(chance.gauss(0, load.noise)) * held_up

    for number in range(turns):
        now, true = 3.0 * number, world(number)
        prompt = int(SHORTEST * 2 ** chance.uniform(0.8, 7.5))
        held = (prompt - NEW) // BLOCK * BLOCK
        mine = int(held * chance.random() * load.own) // BLOCK * BLOCK
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
    """By what share longer than an oracle's, which knows the true costs."""
    turns = list(turns)
    return sum(one.taken for one in turns) / sum(one.best for one in turns) - 1


def excess_of(threshold: float, turns: Iterable[Turn]) -> float:
    """The same of a fixed threshold."""
    turns = list(turns)
    taken = sum(one.pull if one.gap and one.gap >= threshold else one.recompute for one in turns)
    return taken / sum(one.best for one in turns) - 1


def by_bucket(turns: Iterable[Turn]) -> dict[int, list[Turn]]:
    found: dict[int, list[Turn]] = {}
    for one in turns:
        found.setdefault(one.bucket, []).append(one)
    return dict(sorted(found.items()))


KNOWN_FROM = 50
"""The turn of a link from which on its decisions are judged."""
TURNS, SEEDS = 250, range(6000, 6016)

MOST_OVER_ORACLE = 0.03
MOST_EXPLORED, MOST_SPENT = 0.02, 0.01
"""Shares: of a link's turns, and of an oracle's time."""


def tie(noise: float, turns: int) -> float:
    """The share of an oracle's time that counts as none: one standard error of the mean of so many
    turns, had they been measured.

    The best of six rules is named once all is known. Whoever has to measure can not be sure of what
    so many turns do not show, and may be wrong by it next to the break-even.
    """
    return noise / math.sqrt(turns)


@dataclass(frozen=True)
class Condition:
    """Turns of one model. ``link`` and ``engine``: times that the profile has them too slow."""

    model: str
    name: str
    load: Load = Load()
    link: float = 1.0
    engine: float = 1.0

    @property
    def profile_is_right(self) -> bool:
        return self.link == self.engine == 1

    def played(self, turns: int, seed: int) -> list[Turn]:
        costs = World(MODELS[self.model])
        profile = costs.slower_link(self.link).slower_engine(self.engine).costs
        true = self.load.on(costs)
        return play(profile, lambda _: true, turns, seed, self.load)


def conditions() -> list[Condition]:
    """Both models, all loads, and profiles that are ten times off either way."""
    loads = {
        "idle": Load(),
        "busy engine": Load(engine=3),
        "busy link": Load(link=3),
        "both busy": Load(engine=3, link=3),
        "scatter": Load(noise=3 * NOISE),
        "outliers": Load(outliers=0.02),
        "caches": Load(own=0.9),
    }
    wrong = {
        "link thought 10 × too slow": (10.0, 1.0),
        "link thought 10 × too quick": (0.1, 1.0),
        "engine thought 10 × too slow": (1.0, 10.0),
        "engine thought 10 × too quick": (1.0, 0.1),
    }
    return [
        one
        for model in MODELS
        for one in (
            *(Condition(model, name, load) for name, load in loads.items()),
            *(Condition(model, name, Load(), *off) for name, off in wrong.items()),
        )
    ]


@dataclass(frozen=True)
class Length:
    """What the turns of about one length took in the mean, in seconds, and whether that holds.

    ``shortest``: of their prompts, in tokens; those of all lengths have None.
    """

    condition: Condition
    shortest: int | None
    turns: int
    oracle: float
    fitted: float
    rules: Mapping[str, float]

    @property
    def over_oracle(self) -> float:
        return self.fitted / self.oracle - 1

    @property
    def over_best_rule(self) -> float:
        """Of an oracle's time."""
        return (self.fitted - min(self.rules.values())) / self.oracle

    @property
    def tied(self) -> bool:
        """With the best rule, or sooner."""
        return self.over_best_rule <= tie(self.condition.load.noise, self.turns)

    @property
    def holds(self) -> bool:
        # In the turns after it was corrected a wrong profile may still show at one length; it must
        # not in all together.
        beats = self.condition.profile_is_right or self.shortest is None
        return self.over_oracle <= MOST_OVER_ORACLE and (self.tied or not beats)


@dataclass(frozen=True)
class Exploring:
    """What one condition's links spent on it, at worst, and whether that holds.

    ``before``: turns that explored among the first fifty. ``share``: of all turns, from there on
    at any time. ``spent``: of an oracle's time, of all turns.
    """

    condition: Condition
    before: int
    share: float
    spent: float

    @property
    def holds(self) -> bool:
        # Two in a hundred is none in fewer than fifty: yet the first may come sooner.
        return self.before <= 1 and self.share <= MOST_EXPLORED and self.spent <= MOST_SPENT


def judge(
    condition: Condition, turns: int = TURNS, seeds: Sequence[int] = SEEDS
) -> tuple[list[Length], Exploring]:
    """Play one link for each seed, and judge all together: by length, then all lengths."""
    links = [condition.played(turns, seed) for seed in seeds]
    later = [turn for link in links for turn in link[KNOWN_FROM:]]
    lengths = [
        _length(condition, int(SHORTEST * 2**bucket), same)
        for bucket, same in by_bucket(later).items()
    ]
    return [*lengths, _length(condition, None, later)], _exploring(condition, links)


def _length(condition: Condition, shortest: int | None, turns: Sequence[Turn]) -> Length:
    oracle = sum(one.best for one in turns) / len(turns)
    rules = {name: oracle * (1 + excess_of(rule, turns)) for name, rule in RULES.items()}
    fitted = oracle * (1 + excess(turns))
    return Length(condition, shortest, len(turns), oracle, fitted, rules)


def _exploring(condition: Condition, links: Sequence[Sequence[Turn]]) -> Exploring:
    before, share, spent = 0, 0.0, 0.0
    for link in links:
        explored, lost, best = 0, 0.0, 0.0
        for number, one in enumerate(link, 1):
            best += one.best
            if one.choice.explores:
                explored, lost = explored + 1, lost + one.taken - one.best
            if number < KNOWN_FROM:
                before = max(before, explored)
            else:
                share = max(share, explored / number)
        spent = max(spent, lost / best)
    return Exploring(condition, before, share, spent)
