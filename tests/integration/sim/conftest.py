"""The OpenAI server of a sim engine over scripted engines, and an ordinary client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from tests.support.scripted_engine import ScriptedEngine

from contraflow.sim.api import Engine
from contraflow.sim.http.server import EngineServer
from contraflow.sim.http.serving import ServedModel
from contraflow.web import HttpServer

Json = dict[str, Any]
MODEL = "tiny"


@dataclass
class Stream:
    """An event stream that ended. ``names`` are the events' names, where they have some."""

    chunks: list[Json] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    done: bool = False

    def deltas(self, index: int = 0) -> list[Json]:
        """The choices with an index, in order."""
        return [
            choice
            for chunk in self.chunks
            for choice in chunk.get("choices", ())
            if choice["index"] == index
        ]

    def token_ids(self) -> list[int]:
        """Of the first choice, without those of the prompt."""
        return [token for delta in self.deltas() for token in delta.get("token_ids") or ()]


class Client:
    """Talks to one server."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str) -> None:
        self.session = session
        self.base_url = base_url

    async def get(self, path: str) -> tuple[int, str]:
        """Status and text."""
        async with self.session.get(self.base_url + path) as response:
            return response.status, await response.text()

    async def post(self, path: str, body: Json | bytes, **headers: str) -> tuple[int, Json]:
        """Status and JSON."""
        async with self._post(path, body, headers) as response:
            return response.status, await response.json()

    async def stream(self, path: str, body: Json, **headers: str) -> Stream:
        """All events of a stream."""
        stream = Stream()
        async with self._post(path, {**body, "stream": True}, headers) as response:
            assert response.status == 200, await response.text()
            assert response.content_type == "text/event-stream"
            async for line in response.content:
                if line.startswith(b"event: "):
                    stream.names.append(line[7:].decode().strip())
                elif line == b"data: [DONE]\n":
                    stream.done = True
                elif line.startswith(b"data: "):
                    stream.chunks.append(json.loads(line[6:]))
        return stream

    def _post(self, path: str, body: Json | bytes, headers: dict[str, str]) -> Any:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.session.post(self.base_url + path, data=data, headers=names)


Serve = Callable[..., Awaitable[Client]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Serves engines, and returns a client of them."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())

        async def start(*engines: Engine, vllm: str = "0.33.0", length: int = 1024) -> Client:
            model = ServedModel(names=(MODEL, "alias"), max_model_len=length, vllm_version=vllm)
            server = HttpServer(EngineServer(model, engines).handle)
            port = await server.listen("127.0.0.1", 0)
            stack.push_async_callback(server.shutdown, 0.0)
            return Client(session, f"http://127.0.0.1:{port}")

        yield start


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()
