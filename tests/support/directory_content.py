"""A directory at an address that outlives it, and what it holds."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from contraflow.directory.config import DirectoryConfig, EtcdConfig, LivenessConfig
from contraflow.runtime.address import Address
from contraflow.v1 import directory_service_pb2 as pb
from contraflow.v1 import engine_pb2
from contraflow.v1.directory_service_pb2_grpc import DirectoryServiceStub
from tests.support.running_directory import running_directory, until_healthy

if TYPE_CHECKING:
    from contraflow.v1.directory_service_pb2_grpc import DirectoryServiceAsyncStub


def free_address() -> Address:
    """An address on loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return Address("127.0.0.1", probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class DirectoryContent:
    """Asks a directory what it holds."""

    stub: DirectoryServiceAsyncStub

    async def engines(self) -> dict[str, engine_pb2.Engine]:
        """Live engines by id."""
        response = await self.stub.ListEngines(pb.ListEnginesRequest(), timeout=30.0)
        return {engine.engine_id: engine for engine in response.engines}

    async def sessions(self) -> dict[str, str]:
        """Handle ids by session key."""
        response = await self.stub.ListSessions(pb.ListSessionsRequest(), timeout=30.0)
        return {session.session_key: session.handle_id for session in response.sessions}


@asynccontextmanager
async def directory_at(
    address: Address, etcd: Address | None = None
) -> AsyncIterator[DirectoryContent]:
    """A directory on etcd, or in memory: then its content goes when the context ends."""
    config = DirectoryConfig(
        listen=address,
        store="etcd" if etcd else "memory",
        etcd=EtcdConfig(endpoints=(etcd,)) if etcd else EtcdConfig(),
        liveness=LivenessConfig(min_ttl_seconds=0.5),
        log_level="error",
    )
    async with running_directory(config):
        await until_healthy(address)
        async with grpc.aio.insecure_channel(str(address)) as channel:
            yield DirectoryContent(DirectoryServiceStub(channel))
