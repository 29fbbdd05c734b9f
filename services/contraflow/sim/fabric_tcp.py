"""The fabric between processes: TCP, messages of MessagePack behind a length of four bytes.

As open as NIXL's own side channel: whoever reaches the port may read every block.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from contraflow.sim.fabric import Connection, FabricError, Hello, Listener, Owner, RemoteBlock

log = logging.getLogger(__name__)

_ANSWER_SECONDS = 5.0
_MOST_BYTES = 256 * 2**20
_FAULTS = (OSError, EOFError, TimeoutError, ValueError, OverflowError, msgspec.MsgspecError)
"""A peer that is gone or makes no sense, and what a name or a number may be that is none."""

T = TypeVar("T")


class _Read(msgspec.Struct, tag=True):
    block_ids: list[int]


class _Notify(msgspec.Struct, tag=True):
    request_id: str


class _Heartbeat(msgspec.Struct, tag=True):
    request_ids: list[str]


_Order = _Read | _Notify | _Heartbeat


class TcpFabric:
    """Engines in other processes, or in this one. Names, IPv4, and IPv6 without brackets."""

    async def serve(self, owner: Owner, host: str, port: int) -> Listener:
        """As Fabric.serve. Raises OSError if the port is taken."""
        listener = _TcpListener(owner, host)
        await listener.open(port)
        return listener

    async def connect(self, host: str, port: int) -> Connection:
        """As Fabric.connect."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                reader, writer = await asyncio.open_connection(host, port)
                try:
                    hello = await _receive(reader, Hello)
                except BaseException:
                    writer.close()
                    raise
        except _FAULTS as error:
            raise FabricError(f"no handshake with {host}:{port}: {error!r}") from error
        return _TcpConnection(hello, reader, writer)


class _TcpConnection:
    def __init__(
        self, hello: Hello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.hello = hello
        self._reader = reader
        self._writer = writer

    async def read(self, block_ids: Sequence[int]) -> list[RemoteBlock]:
        return await self._ask(_Read(list(block_ids)), list[RemoteBlock])

    async def notify(self, request_id: str) -> None:
        await self._ask(_Notify(request_id), bool)

    async def heartbeat(self, request_ids: Sequence[str]) -> None:
        await self._ask(_Heartbeat(list(request_ids)), bool)

    async def close(self) -> None:
        self._writer.close()

    async def _ask(self, order: _Order, kind: type[T]) -> T:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await _send(self._writer, order)
                return await _receive(self._reader, kind)
        except _FAULTS as error:
            raise FabricError(f"the peer is gone: {error!r}") from error


class _TcpListener:
    def __init__(self, owner: Owner, host: str) -> None:
        self.host = host
        self.port = 0
        self._owner = owner
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self, port: int) -> None:
        self._server = await asyncio.start_server(self._answer, self.host, port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await _send(writer, self._owner.hello())
            while True:
                order: _Order = await _receive(reader, _Order)  # type: ignore[arg-type]
                await _send(writer, self._obey(order))
        except (OSError, EOFError):
            pass  # the peer has what it wanted, or is gone
        except (FabricError, msgspec.MsgspecError) as error:
            log.warning("a peer of the side channel made no sense: %s", error)
        finally:
            self._writers.discard(writer)
            writer.close()

    def _obey(self, order: _Order) -> list[RemoteBlock] | bool:
        if isinstance(order, _Read):
            return self._owner.read(order.block_ids)
        if isinstance(order, _Notify):
            self._owner.notified(order.request_id)
        else:
            self._owner.heartbeat(order.request_ids)
        return True


async def _send(writer: asyncio.StreamWriter, message: object) -> None:
    data = msgspec.msgpack.encode(message)
    writer.write(len(data).to_bytes(4) + data)
    await writer.drain()


async def _receive(reader: asyncio.StreamReader, kind: type[T]) -> T:
    length = int.from_bytes(await reader.readexactly(4))
    if length > _MOST_BYTES:
        raise msgspec.DecodeError("a message is too long")
    return msgspec.msgpack.decode(await reader.readexactly(length), type=kind)
