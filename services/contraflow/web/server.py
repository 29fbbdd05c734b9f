"""The HTTP server: listens, tracks connections, shuts down in order."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Coroutine
from email.utils import formatdate
from typing import Any

import structlog

from contraflow.web.connection import ServerConnection, run_handler
from contraflow.web.errors import ListenError
from contraflow.web.limits import ServerLimits
from contraflow.web.request import Request
from contraflow.web.responder import Responder

Handler = Callable[[Request, Responder], Awaitable[None]]

_WHY = {errno.EADDRINUSE: "the port is already in use"}


class HttpServer:
    """Serves one handler on any number of addresses.

    The handler runs as a task per request. It is cancelled as soon as the client disconnects
    before the response is finished, and at the end of a shutdown's grace.
    """

    def __init__(self, handler: Handler, *, limits: ServerLimits | None = None) -> None:
        self.limits = limits or ServerLimits()
        self.draining = False
        self.loop = asyncio.get_running_loop()
        self.date = formatdate(usegmt=True).encode()
        self._handler = handler
        self._log = structlog.get_logger()
        self._servers: list[asyncio.Server] = []
        self._connections: set[ServerConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._sweep: asyncio.TimerHandle | None = None

    async def listen(self, host: str, port: int, *, backlog: int = 1024) -> int:
        """Accept connections on an address; port 0 picks one. Returns the port.

        Raises ListenError naming the address if that is impossible.
        """
        try:
            server = await self.loop.create_server(
                lambda: ServerConnection(self), host, port, backlog=backlog
            )
        except OSError as error:
            code = error.errno or 0
            why = _WHY.get(code) or (os.strerror(code) if code > 0 else str(error))
            raise ListenError(host, port, why) from error
        self._servers.append(server)
        if self._sweep is None:
            self._tick()
        return int(server.sockets[0].getsockname()[1])

    def stop_listening(self) -> None:
        """Refuse new connections; those that exist go on."""
        for server in self._servers:
            server.close()

    async def shutdown(self, grace: float) -> int:
        """Stop accepting, let running requests finish for `grace` seconds, cut off the rest.

        Kept-alive connections are closed after their present response. Returns the number of
        connections that had to be cut off.
        """
        self.draining = True
        self.stop_listening()
        for connection in list(self._connections):
            connection.close_if_idle()
        try:
            async with asyncio.timeout(grace):
                await self._empty.wait()
                if self._tasks:
                    await asyncio.wait(set(self._tasks))
        except TimeoutError:
            pass
        remaining = list(self._connections)
        for connection in remaining:
            connection.abort()
        await self._empty.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._sweep is not None:
            self._sweep.cancel()
        return len(remaining)

    @property
    def connections(self) -> int:
        """Open client connections."""
        return len(self._connections)

    # For ServerConnection.

    def opened(self, connection: ServerConnection) -> bool:
        self._connections.add(connection)
        self._empty.clear()
        return len(self._connections) <= self.limits.max_connections

    def closed(self, connection: ServerConnection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    def run(self, request: Request, responder: Responder) -> Coroutine[Any, Any, None]:
        return run_handler(self._handler, request, responder, self._log)

    def track(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._untrack)

    def _untrack(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("http.task_failed", error=repr(error))

    def _tick(self) -> None:
        """Check all deadlines: one timer for the server instead of several for each request."""
        self.date = formatdate(usegmt=True).encode()
        now = self.loop.time()
        for connection in list(self._connections):
            connection.check(now)
        self._sweep = self.loop.call_later(self._interval(), self._tick)

    def _interval(self) -> float:
        limits = self.limits
        shortest = min(
            limits.header_timeout, limits.body_timeout, limits.idle_timeout,
            limits.write_timeout, limits.linger,
        )  # fmt: skip
        return max(0.01, min(1.0, shortest / 4))
