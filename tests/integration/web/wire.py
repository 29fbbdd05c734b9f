"""A socket that speaks HTTP by hand, on either side."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from contraflow.web import HttpServer, Origin, UpstreamClient

PATIENCE = 20.0


class Answer:
    """A response as read from the wire."""

    def __init__(self, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def error(self) -> dict[str, Any]:
        """The error object of the OpenAI shape."""
        error: dict[str, Any] = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == self.status
        return error


class Wire:
    """One connection. Every read fails after PATIENCE."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int, host: str = "127.0.0.1") -> Wire:
        return cls(*await asyncio.open_connection(host, port, limit=1 << 24))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        async with asyncio.timeout(PATIENCE):
            await self.writer.drain()

    async def head(self) -> tuple[str, dict[bytes, bytes]]:
        """The start line and the headers, names in lower case."""
        async with asyncio.timeout(PATIENCE):
            lines = (await self.reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
        pairs = [line.split(b": ", 1) for line in lines[1:]]
        return lines[0].decode(), {name.lower(): value for name, value in pairs}

    async def body(self, headers: dict[bytes, bytes]) -> bytes:
        async with asyncio.timeout(PATIENCE):
            if headers.get(b"transfer-encoding") == b"chunked":
                parts = []
                while part := await self.chunk():
                    parts.append(part)
                return b"".join(parts)
            if b"content-length" in headers:
                return await self.reader.readexactly(int(headers[b"content-length"]))
            return await self.reader.read(-1)

    async def chunk(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            data = await self.reader.readexactly(size + 2)
        assert data.endswith(b"\r\n")
        return data[:-2]

    async def answer(self, *, body: bool = True) -> Answer:
        """Read one response."""
        line, headers = await self.head()
        version, status, _ = line.split(" ", 2)
        assert version == "HTTP/1.1"
        content = await self.body(headers) if body else b""
        return Answer(int(status), headers, content)

    async def request(self) -> tuple[str, dict[bytes, bytes], bytes]:
        """Read one request that has a Content-Length, or no body."""
        line, headers = await self.head()
        length = int(headers.get(b"content-length", b"0"))
        async with asyncio.timeout(PATIENCE):
            return line, headers, await self.reader.readexactly(length)

    async def rest(self) -> bytes:
        """Everything until the other side closes; b"" also for a reset."""
        async with asyncio.timeout(PATIENCE):
            try:
                return await self.reader.read(-1)
            except ConnectionError:
                return b""

    def abort(self) -> None:
        self.writer.transport.abort()


class Listening(HttpServer):
    """A server that knows its port."""

    port = 0


Script = Callable[[Wire], Awaitable[None]]
Serve = Callable[..., Awaitable[Listening]]
Dial = Callable[[Listening], Awaitable[Wire]]
Upstream = Callable[[Script], Awaitable[Origin]]
MakeClient = Callable[..., UpstreamClient]
