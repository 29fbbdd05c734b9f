"""A vLLM that talks but does not think: the HTTP contract of one engine, scripted.

It answers the completion routes as vLLM 0.32 and 0.33 do around ``kv_transfer_params``:
0.33 puts them on the chunk with ``finish_reason``, 0.32 streams carry none; keys that we do
not know, nulls and private keys are among them. ``pull`` is what a Contraflow connector in a
prefill engine would report. Hooks in ``EngineScript`` hold or break a request.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from contraflow.core.fleet import Engine, Role
from contraflow.core.instructions import Pull, Tip

Json = dict[str, Any]
CUT_AFTER_HEADERS = -1
ABORTED = -2
TIP = Tip(bytes(range(16)), 300)
TOOL_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "look_up", "arguments": '{"q":  "\\u00e9 \\ud83d\\ude00"}'},
}


def _of_messages(**event: Any) -> bytes:
    data = json.dumps(event, separators=(",", ":"))
    return f"event: {event['type']}\ndata: {data}\n\n".encode()


_OPENINGS = (b'"role": "assistant"', b"message_start")
_TEXT = {"type": "text", "text": ""}
MESSAGES_STREAM = (
    _of_messages(
        type="message_start",
        message={"id": "msg-1", "usage": {"input_tokens": 300, "output_tokens": 0}},
    ),
    _of_messages(type="content_block_start", index=0, content_block=_TEXT),
    _of_messages(
        type="content_block_delta", index=0, delta={"type": "text_delta", "text": "to be \u00e9"}
    ),
    _of_messages(type="content_block_stop", index=0),
    _of_messages(
        type="message_delta",
        delta={"stop_reason": "end_turn", "stop_sequence": None},
        usage={"input_tokens": 100, "cache_read_input_tokens": 200, "output_tokens": 2},
    ),
    _of_messages(type="message_stop"),
)
"""A stream of the Messages API as vLLM writes it."""
ABORTED_MESSAGES = (
    MESSAGES_STREAM[0],
    _of_messages(type="message_delta", delta={}, usage={"output_tokens": 0}),
    MESSAGES_STREAM[-1],
)
ABORTED_CHAT = (
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":"abort"}]}\n\n',
    b"data: [DONE]\n\n",
)


@dataclass(slots=True)
class Received:
    """One request as it came; header names in lower case."""

    path: str
    headers: dict[str, str]
    raw: bytes
    body: Json
    status: int = 200
    finished: bool = False
    disconnected: bool = False

    @property
    def params(self) -> Json:
        """Its transfer parameters; KeyError if there are none."""
        params: Json = self.body["kv_transfer_params"]
        return params

    @property
    def ours(self) -> Json:
        """Of these, what the router has added for our connector."""
        ours: Json = self.params["contraflow"]
        return ours


@dataclass(slots=True)
class EngineScript:
    """What the engine does. ``before_answer`` runs when a request has been read,
    ``between_chunks`` after each chunk of a stream that says something, but the last."""

    vllm: str = "0.32"
    statuses: list[int] = field(default_factory=list)
    """Statuses of the next requests; 200 when used up. 0 cuts the connection, CUT_AFTER_HEADERS
    once headers and a byte are out that says nothing yet. ABORTED is 200 with an empty answer, as
    of an engine that is being stopped."""
    before_answer: Callable[[Received], Awaitable[None]] | None = None
    between_chunks: Callable[[Received], Awaitable[None]] | None = None
    before_end: Callable[[Received], Awaitable[None]] | None = None
    """Runs between the last event of a stream and its end."""
    pull: Callable[[Received], Pull | None] = lambda received: None
    params: Callable[[Received], Json | None] | None = None
    """In place of the engine's own parameters."""
    events: Callable[[Received], list[bytes]] | None = None
    """In place of the engine's own stream."""
    message: Json = field(default_factory=lambda: {"role": "assistant", "content": "to be"})


async def hang(received: Received) -> None:
    """A hook that never returns: the request goes no further, and ends by being left."""
    await asyncio.Event().wait()


class FakeEngine:
    """One engine on a port of its own. ``async with`` runs it."""

    def __init__(self, engine_id: str, role: Role, **fields: Any) -> None:
        self.script = EngineScript()
        self.received: list[Received] = []
        self._engine_id = engine_id
        self._role = role
        self._fields: dict[str, Any] = {
            "agent_address": "127.0.0.1:1",
            "block_size": 32,
            "num_blocks": 512,
            "bidirectional": True,
            "compatibility_class": "class-1",
            "served_models": ("tiny",),
            "model": "org/tiny",
            **fields,
        }
        self._port = 0
        self._runner: web.AppRunner | None = None

    @property
    def engine(self) -> Engine:
        """As the directory would know it."""
        endpoint = f"http://127.0.0.1:{self._port}"
        return Engine(self._engine_id, "nonce", self._role, endpoint, **self._fields)

    @property
    def last(self) -> Received:
        """The newest request."""
        return self.received[-1]

    async def __aenter__(self) -> FakeEngine:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", self._serve)
        app.router.add_post("/v1/completions", self._serve)
        app.router.add_post("/v1/messages", self._serve)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stop listening; the port refuses connections from now on."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    def own_params(self, received: Received) -> Json | None:
        """What NIXL returns: of a prefill leg always, of a decode leg if there were any."""
        given = received.body.get("kv_transfer_params")
        if not given:
            return None
        prefill = self._role is Role.PREFILL
        params: Json = {
            "do_remote_prefill": prefill,
            "do_remote_decode": not prefill,
            "remote_block_ids": [[4, 5, 6]],
            "remote_engine_id": self._engine_id,
            "remote_request_id": f"cmpl-{received.headers.get('x-request-id')}",
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "tp_size": 1,
            "remote_num_tokens": 300,
            "future_key": {"kept": [1, None]},
            "null_key": None,
            "_private": "engine's own",
        }
        if self.script.vllm != "0.32":
            params |= {"remote_registration_generation": 3, "transfer_mode": "pull"}
        if not prefill:
            params["remote_blocks_expiry_time"] = 12345.678
        ours: Json = {"tip": TIP.to_json()} if prefill else {}
        if (pull := self.script.pull(received)) is not None:
            ours["pull"] = pull.to_json()
        return {**params, "contraflow": ours}

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        received = Received(request.path, headers, raw, json.loads(raw))
        self.received.append(received)
        try:
            response = await self._answer(request, received)
        except (asyncio.CancelledError, ConnectionError):
            received.disconnected = True
            raise
        received.finished = True
        return response

    async def _answer(self, request: web.Request, received: Received) -> web.StreamResponse:
        status = received.status = self.script.statuses.pop(0) if self.script.statuses else 200
        if self.script.before_answer is not None:
            await self.script.before_answer(received)
        if status == 0:
            assert request.transport is not None
            request.transport.abort()
            raise ConnectionError("cut")
        if status == CUT_AFTER_HEADERS:
            return await self._cut_after_headers(request, received)
        if status == ABORTED:
            return await self._aborted(request, received)
        if status != 200:
            error = {"message": f"engine says {status}", "type": "EngineError", "code": status}
            return web.json_response({"error": error}, status=status)
        params = self.script.params or self.own_params
        if received.body.get("stream"):
            return await self._stream(request, received, params(received))
        if received.path == "/v1/messages":
            content = [{"type": "text", "text": "to be"}]
            return web.json_response({
                "id": "msg-1", "type": "message", "role": "assistant", "content": content,
                "model": received.body.get("model"), "stop_reason": "end_turn",
                "usage": {"input_tokens": 100, "cache_read_input_tokens": 200, "output_tokens": 2},
                "kv_transfer_params": params(received),
            })  # fmt: skip
        return web.json_response({
            "id": "cmpl-1", "object": "chat.completion", "model": received.body.get("model"),
            "choices": [{"index": 0, "message": self.script.message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 300, "completion_tokens": 2},
            "kv_transfer_params": params(received),
        })  # fmt: skip

    async def _cut_after_headers(
        self, request: web.Request, received: Received
    ) -> web.StreamResponse:
        response = web.StreamResponse()
        streamed = received.body.get("stream")
        response.content_type = "text/event-stream" if streamed else "application/json"
        await response.prepare(request)
        await response.write(b"d")
        raise ConnectionError("cut")

    async def _aborted(self, request: web.Request, received: Received) -> web.StreamResponse:
        messages, nothing = received.path == "/v1/messages", {"output_tokens": 0}
        if not received.body.get("stream"):
            if messages:
                return web.json_response(
                    {"type": "message", "content": [], "stop_reason": None, "usage": nothing}
                )
            empty = {"role": "assistant", "content": ""}
            choice = {"index": 0, "message": empty, "finish_reason": "abort"}
            return web.json_response({"choices": [choice], "kv_transfer_params": None})
        response = web.StreamResponse()
        response.content_type = "text/event-stream"
        await response.prepare(request)
        for event in ABORTED_MESSAGES if messages else ABORTED_CHAT:
            await response.write(event)
        await response.write_eof()
        return response

    async def _stream(
        self, request: web.Request, received: Received, params: Json | None
    ) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_type = "text/event-stream"
        await response.prepare(request)
        chunks = self._events(received, params)
        for index, chunk in enumerate(chunks):
            await response.write(chunk)
            if index == len(chunks) - 1 or self.script.between_chunks is None:
                continue
            if not any(opening in chunk for opening in _OPENINGS):
                await self.script.between_chunks(received)
        if self.script.before_end is not None:
            await self.script.before_end(received)
        await response.write_eof()
        return response

    def _events(self, received: Received, params: Json | None) -> list[bytes]:
        if self.script.events is not None:
            return self.script.events(received)
        if received.path == "/v1/messages":
            return list(MESSAGES_STREAM)
        return self.stream_chunks(params)

    def stream_chunks(self, params: Json | None) -> list[bytes]:
        """The events of a stream, as bytes, with transfer parameters where 0.33 has them."""
        last: Json = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        if self.script.vllm != "0.32":
            last["kv_transfer_params"] = params
        events: list[Json] = [
            {"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}]},
            {"choices": [{"index": 0, "delta": {"content": "to be \u00e9"}}]},
            {"choices": [{"index": 0, "delta": {"tool_calls": [TOOL_CALL]}}]},
            last,
            {"choices": [], "usage": {"prompt_tokens": 300, "completion_tokens": 2}},
        ]
        return [
            *(b"data: " + json.dumps(e).encode() + b"\n\n" for e in events),
            b"data: [DONE]\n\n",
        ]
