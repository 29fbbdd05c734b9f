"""A directory served inside the test's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from contraflow.directory.config import DirectoryConfig, EtcdConfig
from contraflow.directory.main import serve
from contraflow.runtime.address import Address
from contraflow.store.etcd_binary import EtcdProcess

ANY_PORT = Address("127.0.0.1", 0)


def on_etcd(etcd: EtcdProcess, prefix: str, **changes: object) -> DirectoryConfig:
    """Configuration of a directory over ``etcd`` with short intervals."""
    values: dict[str, object] = {
        "listen": ANY_PORT,
        "prefix": prefix,
        "progress_seconds": 0.2,
        "etcd": EtcdConfig(endpoints=(etcd.address,), timeout_seconds=1.0),
    }
    return DirectoryConfig(**{**values, **changes})  # type: ignore[arg-type]


@asynccontextmanager
async def running_directory(config: DirectoryConfig) -> AsyncIterator[Address]:
    """Serve until the block ends; yields the address that is bound."""
    stop = asyncio.Event()
    started: asyncio.Future[Address] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(config, stop=stop, started=started.set_result))
    await asyncio.wait((serving, started), return_when=asyncio.FIRST_COMPLETED)
    try:
        if started.done():
            yield started.result()
    finally:
        stop.set()
        await serving


async def until_healthy(address: Address, service: str = "", within: float = 30.0) -> None:
    """Return once the server at ``address`` says that it serves."""
    async with asyncio.timeout(within), grpc.aio.insecure_channel(str(address)) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        statuses = stub.Watch(health_pb2.HealthCheckRequest(service=service), wait_for_ready=True)
        async for status in statuses:
            if status.status == health_pb2.HealthCheckResponse.SERVING:
                break
        statuses.cancel()
