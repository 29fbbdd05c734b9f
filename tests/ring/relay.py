"""gRPC of this process through a host of the network: over a socket in the file system, since
gRPC dials on threads of its own, which are in no namespace of ours."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.ring.layout import CLIENT
from tests.ring.network import Network
from tests.support.tap import Streams, tapped


@asynccontextmanager
async def relayed(network: Network, address: str, target: Path) -> AsyncIterator[None]:
    """``unix:{target}`` leads to ``address``, dialled by the client's host."""
    host, _, port = address.rpartition(":")

    async def dial(_: str) -> Streams:
        there = network.socket(CLIENT, socket.AF_INET, socket.SOCK_STREAM)
        there.setblocking(False)
        try:
            async with asyncio.timeout(2):
                await asyncio.get_running_loop().sock_connect(there, (host, int(port)))
            return await asyncio.open_connection(sock=there)
        except BaseException:
            there.close()
            raise

    async with tapped(lambda: address, target, dial=dial, keep=False):
        yield
