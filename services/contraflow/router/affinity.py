"""What only this router knows: last decode engines, and its own load."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


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
