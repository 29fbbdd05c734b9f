"""Token masks from regular expressions: which bytes may follow so that the whole text matches.

Classes stand for the ASCII characters in them; `.`, negated classes and categories for the
printable ones of these.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from functools import lru_cache
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as sre_parser  # type: ignore[attr-defined]
from typing import Any

from contraflow.sim.api import TokenMask
from contraflow.sim.vocab import EOS

MAX_STATES = 20_000
_LAST_ASCII = 0x7F
_PRINTABLE = frozenset(range(0x20, 0x7F))
_CATEGORIES = {
    sre.CATEGORY_DIGIT: r"\d",
    sre.CATEGORY_NOT_DIGIT: r"\D",
    sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_NOT_SPACE: r"\S",
    sre.CATEGORY_WORD: r"\w",
    sre.CATEGORY_NOT_WORD: r"\W",
}


class UnsupportedRegex(ValueError):
    """The expression is none, or uses what no mask can be made of; the message says what."""


def regex_mask(pattern: str) -> TokenMask:
    """The mask of one answer. It must be called with the same list, as it grows.

    Where a match may end, EOS is among the tokens; where it can only end, none is. Raises
    UnsupportedRegex for look-around, anchors, back references and flags.
    """
    return _Walk(_automaton(pattern))


def choice_mask(choices: Iterable[str]) -> TokenMask:
    """The mask of an answer that is one of some texts."""
    return regex_mask("|".join([re.escape(choice) for choice in choices]))


class _Walk:
    """A place in an automaton that follows one answer."""

    def __init__(self, automaton: _Automaton) -> None:
        self._automaton = automaton
        self._states = automaton.start
        self._seen = 0

    def __call__(self, generated: list[int]) -> set[int]:
        if len(generated) < self._seen:
            self._states, self._seen = self._automaton.start, 0
        for token in generated[self._seen :]:
            self._states = self._automaton.step(self._states, token)
        self._seen = len(generated)
        return self._automaton.allowed(self._states)


class _Automaton:
    """States are numbers; each has at most one set of bytes and its successor, or free moves."""

    def __init__(self, pattern: str) -> None:
        self._moves: list[tuple[frozenset[int], int] | None] = []
        self._free: list[list[int]] = []
        self._steps: dict[tuple[frozenset[int], int], frozenset[int]] = {}
        self._allowed: dict[frozenset[int], set[int]] = {}
        first = self._state()
        self._end = self._sequence(_parse(pattern), first)
        self.start = self._closure([first])

    def step(self, states: frozenset[int], token: int) -> frozenset[int]:
        """Where a byte leads; the empty set if nowhere."""
        key = states, token
        if key not in self._steps:
            moves = [self._moves[state] for state in states]
            self._steps[key] = self._closure([m[1] for m in moves if m and token in m[0]])
        return self._steps[key]

    def allowed(self, states: frozenset[int]) -> set[int]:
        """Tokens that may follow. The caller must not change the set."""
        if states not in self._allowed:
            moves = [self._moves[state] for state in states]
            tokens = set().union(*[move[0] for move in moves if move])
            if tokens and self._end in states:
                tokens.add(EOS)
            self._allowed[states] = tokens
        return self._allowed[states]

    def _closure(self, states: list[int]) -> frozenset[int]:
        found = set(states)
        while states:
            new = [after for after in self._free[states.pop()] if after not in found]
            found.update(new)
            states += new
        return frozenset(found)

    def _state(self) -> int:
        if len(self._moves) == MAX_STATES:
            raise UnsupportedRegex(f"the regular expression needs over {MAX_STATES} states")
        self._moves.append(None)
        self._free.append([])
        return len(self._moves) - 1

    def _sequence(self, items: Any, at: int) -> int:
        """Add what ``items`` match behind state ``at``; returns the state after it."""
        for operator, argument in items:
            build = _BUILD.get(operator)
            if build is None:
                raise UnsupportedRegex(
                    f"the regular expression uses {str(operator).lower()}, which no mask can be "
                    "made of; literals, classes, groups, alternatives and repeats can"
                )
            at = build(self, argument, at)
        return at

    def _bytes(self, allowed: Iterable[int], at: int) -> int:
        after = self._state()
        self._moves[at] = frozenset(allowed), after
        return after

    # What each operator of the parsed expression adds.

    def _literal(self, code: int, at: int) -> int:
        for byte in chr(code).encode("utf-8", "replace"):
            at = self._bytes([byte], at)
        return at

    def _class(self, items: Any, at: int) -> int:
        negated = items[0][0] is sre.NEGATE
        members = set().union(*[_members(*item) for item in items[negated:]])
        allowed = _PRINTABLE - members if negated else members
        if not allowed:
            raise UnsupportedRegex("a class of the regular expression has no ASCII character")
        return self._bytes(allowed, at)

    def _group(self, argument: Any, at: int) -> int:
        _, add_flags, del_flags, items = argument
        if add_flags or del_flags:
            raise UnsupportedRegex("the regular expression sets flags, which no mask knows")
        return self._sequence(items, at)

    def _branch(self, argument: Any, at: int) -> int:
        ends = []
        for items in argument[1]:
            start = self._state()
            self._free[at].append(start)
            ends.append(self._sequence(items, start))
        after = self._state()
        for end in ends:
            self._free[end].append(after)
        return after

    def _repeat(self, argument: Any, at: int) -> int:
        least, most, items = argument
        for _ in range(least):
            at = self._sequence(items, self._after(at))
        if most is sre.MAXREPEAT:
            loop = self._after(at)
            self._free[self._sequence(items, self._after(loop))].append(loop)
            return self._after(loop)
        ends = [at]
        for _ in range(most - least):
            at = self._sequence(items, self._after(at))
            ends.append(at)
        after = self._state()
        for end in ends:
            self._free[end].append(after)
        return after

    def _after(self, at: int) -> int:
        """A new state, reached freely."""
        after = self._state()
        self._free[at].append(after)
        return after


_BUILD: dict[Any, Callable[[_Automaton, Any, int], int]] = {
    sre.LITERAL: _Automaton._literal,
    sre.NOT_LITERAL: lambda a, code, at: a._bytes(_PRINTABLE - {code}, at),
    sre.ANY: lambda a, _, at: a._bytes(_PRINTABLE, at),
    sre.IN: _Automaton._class,
    sre.SUBPATTERN: _Automaton._group,
    sre.BRANCH: _Automaton._branch,
    sre.MAX_REPEAT: _Automaton._repeat,
    sre.MIN_REPEAT: _Automaton._repeat,
}


def _members(operator: Any, argument: Any) -> Iterable[int]:
    """Bytes that an item of a class stands for."""
    if operator is sre.CATEGORY:
        pattern = re.compile(_CATEGORIES[argument])
        return [code for code in _PRINTABLE if pattern.match(chr(code))]
    low, high = (argument, argument) if operator is sre.LITERAL else argument
    return range(low, min(high, _LAST_ASCII) + 1)


def _parse(pattern: str) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = sre_parser.parse(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise UnsupportedRegex(f"the regular expression is not valid: {error}") from None
    if tree.state.flags & ~re.UNICODE:
        raise UnsupportedRegex("the regular expression sets flags, which no mask knows")
    return tree


@lru_cache(maxsize=64)
def _automaton(pattern: str) -> _Automaton:
    return _Automaton(pattern)
