"""The routes of an engine."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence

from prometheus_client import CONTENT_TYPE_LATEST

from contraflow.sim.api import Engine
from contraflow.sim.http.bodies import DetokenizeBody, Json, TokenizeBody, parse
from contraflow.sim.http.chat import chat, chat_prompt
from contraflow.sim.http.completions import completions
from contraflow.sim.http.messages import messages
from contraflow.sim.http.serving import ServedModel, Serving
from contraflow.sim.metrics import MetricsPage
from contraflow.sim.text import decode, encode
from contraflow.sim.vocab import VOCAB_SIZE
from contraflow.web import ApiError, Request, Responder

_MESSAGES = "/v1/messages"
_Route = Callable[[Request, Responder], Awaitable[None]]


class EngineServer:
    """What an HttpServer hands requests to. ``engines``: one for each data-parallel rank."""

    def __init__(self, model: ServedModel, engines: Sequence[Engine]) -> None:
        self._model = model
        self._serving = Serving(model, engines)
        self._metrics = MetricsPage(model.names[0], engines)
        self._created = int(time.time())
        self._routes: dict[str, dict[str, _Route]] = {
            "/health": {"GET": self._health},
            "/version": {"GET": self._version},
            "/metrics": {"GET": self._page},
            "/v1/models": {"GET": self._models},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/v1/completions": {"POST": self._generation(completions)},
            "/v1/chat/completions": {"POST": self._generation(chat)},
            _MESSAGES: {"POST": self._generation(messages)},
        }

    async def handle(self, request: Request, responder: Responder) -> None:
        """Answer a request. Raises ApiError, which the HTTP server answers with."""
        methods = self._routes.get(request.path)
        if methods is None:
            raise ApiError(404, "Not Found")
        route = methods.get(request.method)
        if route is None:
            allowed = ((b"allow", ", ".join(methods).encode()),)
            raise ApiError(405, "Method Not Allowed", headers=allowed)
        try:
            await route(request, responder)
        except ApiError as error:
            if request.path != _MESSAGES or responder.started:
                raise
            shape = {"type": error.err_type, "message": error.message}
            responder.send_json(error.status, {"type": "error", "error": shape})

    def _generation(
        self, route: Callable[[Serving, Request, Responder], Awaitable[None]]
    ) -> _Route:
        return lambda request, responder: route(self._serving, request, responder)

    async def _health(self, request: Request, responder: Responder) -> None:
        responder.respond(200)

    async def _version(self, request: Request, responder: Responder) -> None:
        responder.send_json(200, {"version": self._model.vllm_version})

    async def _page(self, request: Request, responder: Responder) -> None:
        headers = [(b"content-type", CONTENT_TYPE_LATEST.encode())]
        responder.respond(200, headers, self._metrics.render())

    async def _models(self, request: Request, responder: Responder) -> None:
        data: list[Json] = [
            {
                "id": name,
                "object": "model",
                "created": self._created,
                "owned_by": "vllm",
                "root": self._model.names[0],
                "parent": None,
                "max_model_len": self._model.max_model_len,
                "permission": [],
            }
            for name in self._model.names
        ]
        responder.send_json(200, {"object": "list", "data": data})

    async def _tokenize(self, request: Request, responder: Responder) -> None:
        body = parse(request.body, TokenizeBody)
        self._serving.name(body.model)
        if body.messages is not None:
            tokens = chat_prompt(
                body.messages,
                body.tools or (),
                add_generation_prompt=body.add_generation_prompt,
            )
        elif body.prompt is not None:
            tokens = encode(body.prompt)
        else:
            raise ApiError(400, "Either prompt or messages is needed.", param="prompt")
        answer = {
            "count": len(tokens),
            "max_model_len": self._model.max_model_len,
            "tokens": tokens,
            "token_strs": [decode([token]) for token in tokens] if body.return_token_strs else None,
        }
        responder.send_json(200, answer)

    async def _detokenize(self, request: Request, responder: Responder) -> None:
        body = parse(request.body, DetokenizeBody)
        self._serving.name(body.model)
        if not all(0 <= token < VOCAB_SIZE for token in body.tokens):
            raise ApiError(400, f"Token ids must be below {VOCAB_SIZE}.", param="tokens")
        responder.send_json(200, {"prompt": decode(body.tokens)})
