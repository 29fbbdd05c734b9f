"""Whoever follows handles, each with a bounded backlog. Confined to the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from contraflow.agent.mirror import MirroredHandle
from contraflow.core.errors import Overloaded

BACKLOG = 10_000
"""Changes that a watcher may leave unread."""


class Watcher:
    """The changes of one session's handles, or of all with an empty key, oldest first."""

    def __init__(self, session_key: str, backlog: int) -> None:
        self._session_key = session_key
        self._changes: asyncio.Queue[MirroredHandle] = asyncio.Queue(backlog)
        self._overrun = False

    def tell(self, handle: MirroredHandle) -> None:
        """A handle as it is now."""
        if self._session_key not in ("", handle.session_key) or self._overrun:
            return
        try:
            self._changes.put_nowait(handle)
        except asyncio.QueueFull:
            self._overrun = True

    async def next(self) -> MirroredHandle:
        """The next change. Raises Overloaded as soon as one had to be left out."""
        if self._overrun:
            raise Overloaded("too many changes were left unread: watch again")
        return await self._changes.get()


class HandleFeed:
    """Passes changes of handles on to all watchers, and waits for none."""

    def __init__(self, backlog: int = BACKLOG) -> None:
        self._backlog = backlog
        self._watchers: set[Watcher] = set()

    def tell(self, handle: MirroredHandle) -> None:
        """A handle as it is now; with its last state once it has ended."""
        for watcher in self._watchers:
            watcher.tell(handle)

    @contextmanager
    def watching(self, session_key: str) -> Iterator[Watcher]:
        """A watcher of the changes from now on, for as long as the context lasts."""
        watcher = Watcher(session_key, self._backlog)
        self._watchers.add(watcher)
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)
