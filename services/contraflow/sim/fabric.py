"""The side channel between engines: handshake, reads, notifications. And one in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class FabricError(Exception):
    """The peer is not there, or can not answer."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What an engine says of itself when it is reached; ``now`` is on its own clock."""

    engine_id: str
    compatibility_class: str
    registration_generation: int
    now: float


@dataclass(frozen=True, slots=True)
class RemoteBlock:
    """What a block held at the instant of the read, whoever it belonged to then."""

    generation: int
    seed: bytes
    tokens: list[int]


class Owner(Protocol):
    """What an engine does for those that reach it. Nothing is checked, as with RDMA."""

    def hello(self) -> Hello:
        """The handshake."""

    def read(self, block_ids: Sequence[int]) -> list[RemoteBlock]:
        """Contents as they are now. Raises FabricError for blocks that do not exist."""

    def notified(self, request_id: str) -> None:
        """A reader is done with the blocks of a request."""

    def heartbeat(self, request_ids: Sequence[str]) -> None:
        """Readers still wait for the blocks of these requests."""


class Connection(Protocol):
    """A handshake that has succeeded. Every call raises FabricError once the peer is gone."""

    hello: Hello

    async def read(self, block_ids: Sequence[int]) -> list[RemoteBlock]:
        """As Owner.read."""

    async def notify(self, request_id: str) -> None:
        """As Owner.notified."""

    async def heartbeat(self, request_ids: Sequence[str]) -> None:
        """As Owner.heartbeat."""

    async def close(self) -> None:
        """Let go of it."""


class Listener(Protocol):
    """An engine that can be reached."""

    host: str
    port: int

    async def close(self) -> None:
        """Be gone."""


class Fabric(Protocol):
    """Reaches engines by host and port."""

    async def serve(self, owner: Owner, host: str, port: int) -> Listener:
        """Let an engine be reached; port 0 picks one."""

    async def connect(self, host: str, port: int) -> Connection:
        """Handshake. Raises FabricError if nobody answers."""


class MemoryFabric:
    """All engines of one process. Takes no time and keeps no secrets."""

    def __init__(self) -> None:
        self.owners: dict[tuple[str, int], Owner] = {}
        self._next_port = 40_000

    async def serve(self, owner: Owner, host: str, port: int) -> Listener:
        """As Fabric.serve."""
        if port == 0:
            self._next_port += 1
            port = self._next_port
        self.owners[host, port] = owner
        return _MemoryListener(self, host, port)

    async def connect(self, host: str, port: int) -> Connection:
        """As Fabric.connect."""
        owner = self.owners.get((host, port))
        if owner is None:
            raise FabricError(f"nobody is at {host}:{port}")
        return _MemoryConnection(self, (host, port), owner)


@dataclass(slots=True)
class _MemoryListener:
    fabric: MemoryFabric
    host: str
    port: int

    async def close(self) -> None:
        self.fabric.owners.pop((self.host, self.port), None)


class _MemoryConnection:
    def __init__(self, fabric: MemoryFabric, address: tuple[str, int], owner: Owner) -> None:
        self.hello = owner.hello()
        self._fabric = fabric
        self._address = address
        self._owner = owner

    async def read(self, block_ids: Sequence[int]) -> list[RemoteBlock]:
        return self._reached().read(block_ids)

    async def notify(self, request_id: str) -> None:
        self._reached().notified(request_id)

    async def heartbeat(self, request_ids: Sequence[str]) -> None:
        self._reached().heartbeat(request_ids)

    async def close(self) -> None:
        pass

    def _reached(self) -> Owner:
        if self._fabric.owners.get(self._address) is not self._owner:
            raise FabricError("the peer is gone")
        return self._owner
