"""Stands between two processes, passes every byte on and keeps a copy, if it shall."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Dial = Callable[[str], Awaitable[Streams]]


class Tap:
    """Listens at ``address``, a gRPC target (``host:port`` or ``unix:/path``)."""

    def __init__(self, target: Callable[[], str], dial: Dial, keep: bool) -> None:
        """``target`` is asked, at each connection, where to pass it on to."""
        self.address = ""
        self.recorded: list[bytearray] = []
        """What each direction of each connection has carried."""
        self._target = target
        self._dial = dial
        self._keep = keep

    @property
    def size(self) -> int:
        """Bytes recorded."""
        return sum(map(len, self.recorded))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from its beginning to its end."""
        try:
            there = await self._dial(self._target())
        except (OSError, TimeoutError):
            writer.close()
            return
        async with asyncio.TaskGroup() as both:
            both.create_task(self._copy(reader, there[1]))
            both.create_task(self._copy(there[0], writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept = bytearray()
        self.recorded.append(kept)
        try:
            while data := await reader.read(65536):
                if self._keep:
                    kept += data
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # either end may go at any time
        finally:
            writer.close()


@asynccontextmanager
async def tapped(
    target: Callable[[], str],
    socket: Path | None = None,
    *,
    dial: Dial | None = None,
    keep: bool = True,
) -> AsyncIterator[Tap]:
    """A tap on a loopback port, or at ``socket``."""
    tap = Tap(target, dial or _dial, keep)
    if socket is None:
        server: asyncio.Server = await asyncio.start_server(tap.serve, "127.0.0.1", 0)
        tap.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    else:
        server = await asyncio.start_unix_server(tap.serve, socket)
        tap.address = f"unix:{socket}"
    try:
        yield tap
    finally:
        server.close()


async def _dial(target: str) -> Streams:
    if target.startswith("unix:"):
        return await asyncio.open_unix_connection(target.removeprefix("unix:"))
    host, _, port = target.removeprefix("http://").rpartition(":")
    return await asyncio.open_connection(host, int(port))
