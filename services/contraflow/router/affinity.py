"""What only this router knows: last decode engines, replies it has seen, and its own load."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

_SAME_REPLIES = 4  # as many as an engine keeps branches


class Homes:
    """Session key to the engine that served the last decode leg; bounded, oldest out first.

    Only fills the time until the directory has heard of that leg's handle.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._engines: OrderedDict[str, str] = OrderedDict()

    @property
    def by_key(self) -> Mapping[str, str]:
        """The live mapping."""
        return self._engines

    def remember(self, session_key: str, engine_id: str) -> None:
        """Call only after the decode leg has ended well."""
        self._engines[session_key] = engine_id
        self._engines.move_to_end(session_key)
        while len(self._engines) > self._capacity:
            self._engines.popitem(last=False)

    def forget(self, session_key: str) -> None:
        """The directory knows better, or the handle has been claimed or denied."""
        self._engines.pop(session_key, None)


@dataclass(frozen=True, slots=True)
class Produced:
    """Who made a reply. ``spent``: a turn that goes on from it has asked for its handle."""

    turn_id: str
    engine_id: str
    spent: bool = False


class Replies:
    """Session key and digest of the reply to the turns that made it; bounded, oldest out first.

    Tells conversations apart that have the same messages up to a reply.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._turns: OrderedDict[tuple[str, str], tuple[Produced, ...]] = OrderedDict()

    def remember(self, session_key: str, reply_digest: str, produced: Produced) -> None:
        """Call only after the decode leg has ended well."""
        reply = session_key, reply_digest
        self._turns[reply] = (produced, *self._turns.get(reply, ()))[:_SAME_REPLIES]
        self._turns.move_to_end(reply)
        while len(self._turns) > self._capacity:
            self._turns.popitem(last=False)

    def find(self, session_key: str, reply_digest: str) -> Produced | None:
        """The newest turn that is not spent, else any; None if the reply was not seen."""
        turns = self._turns.get((session_key, reply_digest))
        return turns[0] if turns else None

    def spend(self, session_key: str, reply_digest: str) -> None:
        """The handle that ``find`` told of is being asked for."""
        if turns := self._turns.get((session_key, reply_digest)):
            self._turns[session_key, reply_digest] = (*turns[1:], replace(turns[0], spent=True))


class Load:
    """Legs of this router in flight, by engine id."""

    def __init__(self) -> None:
        self._legs: Counter[str] = Counter()

    @property
    def by_engine(self) -> Mapping[str, int]:
        """The live counts."""
        return self._legs

    @contextmanager
    def leg(self, engine_id: str) -> Iterator[None]:
        """Counts one leg while the block runs."""
        self._legs[engine_id] += 1
        try:
            yield
        finally:
            self._legs[engine_id] -= 1
            if not self._legs[engine_id]:
                del self._legs[engine_id]
