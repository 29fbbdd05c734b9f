"""A router as it is started and stopped: a process of its own."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from tests.support.running_directory import ANY_PORT
from tests.support.wait import until

SECRET = "0123456789abcdef"


def config_text(
    directory: object, listen: object = ANY_PORT, grpc_listen: object = ANY_PORT, more: str = ""
) -> str:
    return f"""
listen = "{listen}"
grpc_listen = "{grpc_listen}"
directory = ["{directory}"]
cluster_secret = "{SECRET}"
drain_deadline_seconds = 20.0
{more}
"""


class RouterProcess:
    """``log`` is what it has said so far, an event a line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.log: list[str] = []
        self._reading = asyncio.create_task(self._read())

    @property
    def addresses(self) -> dict[str, str]:
        """Of both listeners, by name; empty until it serves."""
        events = [json.loads(line) for line in self.log]
        return next((event for event in events if event["event"] == "serving"), {})

    @property
    def url(self) -> str:
        return f"http://{self.addresses['http']}"

    async def healthy(self, session: aiohttp.ClientSession) -> None:
        """Return once it can serve turns with both legs."""
        async with asyncio.timeout(20):
            while True:
                async with session.get(f"{self.url}/health") as response:
                    state = await response.json()
                    if response.status == 200 and not state["missing"]:
                        return
                await asyncio.sleep(0.02)

    def refuses(self) -> bool:
        """Whether it takes no new connection."""
        host, _, port = self.addresses["http"].partition(":")
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) != 0

    async def end(self) -> int:
        """SIGTERM; returns the exit status."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(self.process.wait(), 30)
        await self._reading
        return self.process.returncode or 0

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.log.append(line.decode())


@asynccontextmanager
async def router_process(folder: Path, directory: object) -> AsyncIterator[RouterProcess]:
    """It listens; what it needs of a directory may be missing."""
    file = folder / "router.toml"
    file.write_text(config_text(directory))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "contraflow.cli.main", "router", "--config", str(file),
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    router = RouterProcess(process)
    try:
        await until(lambda: bool(router.addresses), "the router serves")
        yield router
    finally:
        if process.returncode is None:
            process.kill()
        await router.end()
