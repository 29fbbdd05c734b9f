"""The workloads that have names. Pure: equal seeds give equal ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from contraflow.bench.multiturn.distributions import Lognormal
from contraflow.bench.multiturn.workload import Conversation, Fork, Turn, Workload


@dataclass(frozen=True, slots=True)
class Sizes:
    """Lengths in tokens; ``prefix`` from the shortest to the longest, both included.

    ``think_seconds`` is the mean pause before a turn, for shapes that pause.
    """

    conversations: int
    turns: int
    prefix: tuple[int, int]
    input_tokens: int
    output_tokens: int
    think_seconds: float = 0.0


REFERENCE = Sizes(10, 5, (2_000, 24_000), 150, 300)
AGENT = Sizes(8, 12, (500, 4_000), 400, 120, 1.0)

_REFERENCE_COMMON = 500
_COMMON = 2_000
_USER_EVERY = 5
_USER_TOKENS = 60
_USER_THINKS = 5.0
_FORK_EVERY = 4
_FORK_TURNS = 3
_MOST = 8


def reference(sizes: Sizes, seed: int) -> Workload:
    """Prefixes evenly spread, one for each conversation; all else constant and without pauses.

    The order is the seed's, lest length be confused with what the machine does meanwhile. As the
    published scripts have it, all conversations begin with the same 500 tokens, and their "10
    turns" are messages, answers included: five requests.
    """
    lengths = _spread(sizes.prefix, sizes.conversations)
    Random(f"{seed}/reference").shuffle(lengths)
    turns = (Turn(sizes.input_tokens, sizes.output_tokens),) * sizes.turns
    conversations = (Conversation(n, length, turns) for n, length in enumerate(lengths))
    return Workload("reference", tuple(conversations), _REFERENCE_COMMON)


def agent(sizes: Sizes, seed: int) -> Workload:
    """Agents at work: instructions and tools in common, then mostly tools' results of very
    different lengths, short answers, pauses while tools run, longer ones where a person speaks,
    and now and then a side task on a branch of its own."""
    random = Random(f"{seed}/agent")
    lengths = _spread(sizes.prefix, sizes.conversations)
    random.shuffle(lengths)
    conversations = []
    for number, length in enumerate(lengths):
        trunk = [_step(sizes, random, user=n % _USER_EVERY == 0) for n in range(sizes.turns)]
        first = Turn(_USER_TOKENS, trunk[0].output_tokens)
        forks = tuple(
            Fork(after, tuple(_step(sizes, random) for _ in range(_FORK_TURNS)))
            for after in range(1, sizes.turns)
            if random.random() * _FORK_EVERY < 1
        )
        conversations.append(Conversation(number, length, (first, *trunk[1:]), forks))
    return Workload("agent", tuple(conversations), _COMMON)


def _step(sizes: Sizes, random: Random, *, user: bool = False) -> Turn:
    # Drawn in any case: other shares of users would otherwise move all that comes after.
    said = _around(sizes.input_tokens, random)
    answered = _around(sizes.output_tokens, random)
    pause = random.expovariate(1) * sizes.think_seconds
    if user:
        return Turn(_USER_TOKENS, answered, pause * _USER_THINKS)
    return Turn(said, answered, pause, from_tool=True)


def _around(average: int, random: Random) -> int:
    return max(1, Lognormal.around(average, 0.6, average * _MOST).draw(random))


def _spread(bounds: tuple[int, int], count: int) -> list[int]:
    low, high = bounds
    steps: Sequence[int] = range(count)
    return [round(low + (high - low) * step / max(1, count - 1)) for step in steps]
