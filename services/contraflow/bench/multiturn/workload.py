"""What is sent: conversations of turns with lengths, pauses and forks. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. Lengths in tokens: what it adds to the history, and what is generated.

    ``think_seconds`` pass before it is sent. ``from_tool``: a tool's result, else a user's words.
    """

    input_tokens: int
    output_tokens: int
    think_seconds: float = 0.0
    from_tool: bool = False


@dataclass(frozen=True, slots=True)
class Fork:
    """Turns on a branch of their own that begins with the history after turn ``after``, counted
    from 1. The trunk goes on once they are through."""

    after: int
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """``prefix_tokens`` of its own come before the words of the first turn."""

    number: int
    prefix_tokens: int
    turns: tuple[Turn, ...]
    forks: tuple[Fork, ...] = ()

    @property
    def turn_count(self) -> int:
        """Requests, on all branches."""
        return len(self.turns) + sum(len(fork.turns) for fork in self.forks)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its answer, whatever chat templates add left out."""
        trunk = [0, *accumulate(map(_growth, self.turns))]
        branches = (trunk[fork.after] + sum(map(_growth, fork.turns)) for fork in self.forks)
        return self.prefix_tokens + max(trunk[-1], *branches, 0)

    def lost_after(self, branch: int, turn: int) -> int:
        """Requests that are never sent when ``turn`` (from 1) of a branch (0: trunk) fails."""
        if branch:
            fork = self.forks[branch - 1]
            return fork.after + len(fork.turns) - turn
        later = sum(len(fork.turns) for fork in self.forks if fork.after >= turn)
        return len(self.turns) - turn + later


def _growth(turn: Turn) -> int:
    return turn.input_tokens + turn.output_tokens


@dataclass(frozen=True, slots=True)
class Workload:
    """``common_prefix_tokens`` open every conversation alike. ``name`` says whose shape it is."""

    name: str
    conversations: tuple[Conversation, ...]
    common_prefix_tokens: int = 0

    @property
    def turn_count(self) -> int:
        """Requests that each leg gets."""
        return sum(one.turn_count for one in self.conversations)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its answer, whatever chat templates add left out."""
        return self.common_prefix_tokens + max(one.longest for one in self.conversations)

    def warm_up(self, turns: int) -> Conversation:
        """The beginning of the shortest conversation, without pauses: its number is -1."""
        shortest = min(self.conversations, key=lambda one: one.prefix_tokens)
        first = tuple(
            Turn(turn.input_tokens, turn.output_tokens, from_tool=turn.from_tool)
            for turn in shortest.turns[:turns]
        )
        return Conversation(-1, shortest.prefix_tokens, first)
