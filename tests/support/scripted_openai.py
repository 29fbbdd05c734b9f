"""A server of the OpenAI API that says what it is told, in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from contraflow.web import HttpServer, Origin, Request, Responder

TOKENS_PER_WORD = 2
TEMPLATE_TOKENS = 7


@dataclass
class Received:
    """A request: by which server, what it held."""

    server: str
    body: dict[str, Any]
    session: str
    key: str

    @property
    def said(self) -> list[str]:
        """The messages, oldest first."""
        return [message["content"] for message in self.body["messages"]]


@dataclass
class ScriptedServer:
    """Its n-th answer, from 1, is ``name/n``. Before that ``meet`` may do as it likes with a
    request: True if it has answered. Usage counts TOKENS_PER_WORD and TEMPLATE_TOKENS."""

    name: str
    log: list[Received] = field(default_factory=list)
    meet: Callable[[Received, Responder], bool] = lambda received, responder: False
    report: str = ""
    max_model_len: int | None = None
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    """Holds answers back while it is not set."""
    answered: int = 0
    origin: Origin = field(init=False)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[ScriptedServer]:
        """Listens meanwhile."""
        self.gate.set()
        server = HttpServer(self._handle)
        self.origin = Origin("127.0.0.1", await server.listen("127.0.0.1", 0))
        try:
            yield self
        finally:
            await server.shutdown(0)

    async def _handle(self, request: Request, responder: Responder) -> None:
        if request.path == "/v1/models":
            model = {"id": f"model-of-{self.name}", "max_model_len": self.max_model_len}
            responder.send_json(200, {"object": "list", "data": [model]})
            return
        if request.path == "/metrics":
            responder.respond(200, [], b"vllm:generation_tokens_total %d\n" % self.answered)
            return
        session = (request.header(b"x-session-id") or b"").decode()
        key = (request.header(b"authorization") or b"").decode()
        received = Received(self.name, json.loads(request.body), session, key)
        self.log.append(received)
        await self.gate.wait()
        if self.meet(received, responder):
            return
        self.answered += 1
        headers = [(b"content-type", b"text/event-stream")]
        if self.report:
            headers.append((b"x-contraflow", self.report.encode()))
        responder.start(200, headers)
        for event in self._events(received):
            await responder.write(b"data: %b\n\n" % json.dumps(event).encode())
        responder.finish(b"data: [DONE]\n\n")

    def _events(self, received: Received) -> list[dict[str, Any]]:
        texts = ["", self.name, f"/{self.answered}"]
        deltas = [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in texts]
        count = len(" ".join(received.said).split())
        usage = {
            "prompt_tokens": count * TOKENS_PER_WORD + TEMPLATE_TOKENS, "completion_tokens": 2,
        }  # fmt: skip
        return [*deltas, {"choices": [], "usage": usage}]


def refuses(responder: Responder) -> bool:
    """Answer 503."""
    responder.send_json(503, {"error": {"message": "no engine"}})
    return True
