"""Connections of one origin."""

from __future__ import annotations

import asyncio
from collections import deque

from contraflow.web.limits import ClientLimits
from contraflow.web.origin import Origin
from contraflow.web.upstream_connection import UpstreamConnection
from contraflow.web.upstream_errors import UpstreamConnectError, UpstreamTimeout


class OriginPool:
    """At most `max_connections` open, the most recently used idle one first."""

    def __init__(self, origin: Origin, limits: ClientLimits) -> None:
        self.origin = origin
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._idle: deque[UpstreamConnection] = deque()
        self._open: set[UpstreamConnection] = set()
        self._connecting = 0
        self._waiters: deque[asyncio.Future[UpstreamConnection | None]] = deque()
        self._reaper: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def open_connections(self) -> int:
        """Connections open or being opened."""
        return len(self._open) + self._connecting

    @property
    def idle_connections(self) -> int:
        """Open connections that serve no request."""
        return len(self._idle)

    async def acquire(self, *, fresh: bool = False) -> UpstreamConnection:
        """A connection for one exchange; give it back with `release`.

        `fresh` leaves idle ones alone. Raises UpstreamConnectError, or UpstreamTimeout with phase
        pool or connect; nothing has been sent then.
        """
        while not self._closed:
            if not fresh and (connection := self._take_idle()) is not None:
                return connection
            if self.open_connections >= self._limits.max_connections:
                self._make_room(fresh)
            if self.open_connections < self._limits.max_connections:
                self._connecting += 1
                return await self._connect()
            handed = await self._wait_turn()
            if handed is None:
                return await self._connect()
            if handed.quiet():
                return handed
            handed.abort()
            self._drop(handed)
        raise UpstreamConnectError(self.origin, "the client is closed")

    def _take_idle(self) -> UpstreamConnection | None:
        oldest = self._loop.time() - self._limits.idle_timeout
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since > oldest and connection.quiet():
                return connection
            connection.abort()
        return None

    def _make_room(self, fresh: bool) -> None:
        if fresh and self._idle:
            connection = self._idle.popleft()
            self._open.discard(connection)
            connection.abort()

    async def _wait_turn(self) -> UpstreamConnection | None:
        """Wait for a released connection, or for room (None), which is then reserved."""
        waiter: asyncio.Future[UpstreamConnection | None] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(self._limits.pool_timeout):
                return await waiter
        except (TimeoutError, asyncio.CancelledError) as stopped:
            self._withdraw(waiter)
            if isinstance(stopped, TimeoutError):
                raise UpstreamTimeout(self.origin, "pool", bytes_sent=False) from None
            raise

    def _withdraw(self, waiter: asyncio.Future[UpstreamConnection | None]) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            connection = waiter.result()
            if connection is None:
                self._connecting -= 1
                self._offer_room()
            else:
                self._park(connection)

    async def _connect(self) -> UpstreamConnection:
        """Open a connection in the room reserved by counting it in `_connecting`."""
        connection = UpstreamConnection(self.origin, self._limits, self)
        try:
            async with asyncio.timeout(self._limits.connect_timeout):
                await self._loop.create_connection(
                    lambda: connection, self.origin.host, self.origin.port
                )
            self._open.add(connection)
            return connection
        except TimeoutError:
            connection.abort()
            raise UpstreamTimeout(self.origin, "connect", bytes_sent=False) from None
        except OSError as error:
            raise UpstreamConnectError(self.origin, str(error) or type(error).__name__) from error
        except BaseException:
            connection.abort()
            raise
        finally:
            self._connecting -= 1
            self._offer_room()

    def release(self, connection: UpstreamConnection) -> None:
        """Take a connection back; it is closed unless its exchange ended in order."""
        if connection.release() and not self._closed:
            self._park(connection)
        else:
            connection.abort()
            self._drop(connection)

    def _park(self, connection: UpstreamConnection) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        if len(self._idle) >= self._limits.max_idle:
            connection.abort()
            self._drop(connection)
            return
        connection.idle_since = self._loop.time()
        self._idle.append(connection)
        if self._reaper is None:
            self._reaper = self._loop.call_later(self._limits.idle_timeout, self._reap)

    def lost(self, connection: UpstreamConnection) -> None:
        """For connections: the transport is closed."""
        if connection in self._idle:
            self._idle.remove(connection)
        self._drop(connection)

    def _drop(self, connection: UpstreamConnection) -> None:
        if connection in self._open:
            self._open.discard(connection)
            self._offer_room()

    def _offer_room(self) -> None:
        """Let the first waiter open a connection if there is room for one."""
        while self._waiters and self.open_connections < self._limits.max_connections:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self._connecting += 1
                waiter.set_result(None)
                return

    def _reap(self) -> None:
        self._reaper = None
        oldest = self._loop.time() - self._limits.idle_timeout
        while self._idle and self._idle[0].idle_since <= oldest:
            self._idle.popleft().abort()
        if self._idle:
            wait = self._idle[0].idle_since - oldest
            self._reaper = self._loop.call_later(max(0.05, wait), self._reap)

    def close(self) -> None:
        """Abort every connection, those in use included."""
        self._closed = True
        if self._reaper is not None:
            self._reaper.cancel()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(UpstreamConnectError(self.origin, "the client is closed"))
        self._waiters.clear()
        for connection in list(self._open):
            connection.abort()
        self._idle.clear()
