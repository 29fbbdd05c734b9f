"""An engine that answers with whatever bytes it is told, and keeps what it was sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sent:
    """One request as the router sent it."""

    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Json:
        """AssertionError if it names a key twice: parsers differ in which one counts."""
        body: Members = json.loads(self.raw, object_pairs_hook=Members, parse_int=_integer)
        assert not body.repeated, self.raw
        return body

    @property
    def params(self) -> Json:
        """Its transfer parameters; KeyError if there are none."""
        params: Json = self.body["kv_transfer_params"]
        return params


class Members(dict[str, Any]):
    """An object, and whether it named a key twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.repeated = len(self) < len(pairs)


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) < 1000 else digits  # there is a limit to what Python reads


def whole(value: object, status: int = 200, *headers: str) -> bytes:
    """A JSON response; bytes go as they are."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    lines = [f"HTTP/1.1 {status} OK", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def stream(*pieces: bytes) -> bytes:
    """An event stream, chunked in these pieces."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece)
    return b"%b\r\n%b0\r\n\r\n" % (head, chunks)


class RawEngine:
    """``answer`` makes the bytes of a response, of which nothing is checked; the connection is
    closed after an answer that ``cuts`` says it of."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.answer: Callable[[Sent], bytes] = lambda sent: whole({})
        self.cuts = False
        self.endpoint = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until it is closed."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                line, *rest = head.decode("latin-1").split("\r\n")[:-2]
                pairs = (header.partition(": ")[::2] for header in rest)
                headers = {name.lower(): value for name, value in pairs}
                raw = await reader.readexactly(int(headers["content-length"]))
                sent = Sent(line.split(" ")[1], headers, raw)
                self.sent.append(sent)
                writer.write(self.answer(sent))
                await writer.drain()
                if self.cuts:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the router has closed it
        finally:
            writer.close()


@asynccontextmanager
async def raw_engine() -> AsyncIterator[RawEngine]:
    """One on a port of its own."""
    engine = RawEngine()
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0, limit=2**22)
    engine.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield engine
    finally:
        server.close()
