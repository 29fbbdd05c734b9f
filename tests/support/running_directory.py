"""The directory, in this process, and what one asks it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from contraflow.directory.config import DirectoryConfig, EtcdConfig, LivenessConfig
from contraflow.directory.main import serve
from contraflow.runtime.address import Address
from contraflow.v1 import directory_service_pb2 as pb
from contraflow.v1 import engine_pb2
from contraflow.v1.directory_service_pb2_grpc import DirectoryServiceStub
from tests.support.wait import DEADLINE_SECONDS

if TYPE_CHECKING:
    from contraflow.v1.directory_service_pb2_grpc import DirectoryServiceAsyncStub


def free_address() -> Address:
    """An address on loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return Address("127.0.0.1", probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class RunningDirectory:
    """A directory that serves."""

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
async def running_directory(
    address: Address, etcd: Address | None = None
) -> AsyncIterator[RunningDirectory]:
    """A directory on etcd, or in memory: then its content goes when the context ends."""
    config = DirectoryConfig(
        listen=address,
        store="etcd" if etcd else "memory",
        etcd=EtcdConfig(endpoints=(etcd or Address("127.0.0.1", 1),)),
        liveness=LivenessConfig(min_ttl_seconds=0.5),
        log_level="error",
    )
    stop, started = asyncio.Event(), asyncio.Event()
    serving = asyncio.create_task(serve(config, stop=stop, started=lambda _: started.set()))
    waiting = asyncio.create_task(started.wait())
    await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    try:
        async with grpc.aio.insecure_channel(str(address)) as channel:
            directory = RunningDirectory(DirectoryServiceStub(channel))
            await _until_filled(directory)
            yield directory
    finally:
        stop.set()
        await serving


async def _until_filled(directory: RunningDirectory) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            try:
                await directory.engines()
                return
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
            await asyncio.sleep(0.01)
