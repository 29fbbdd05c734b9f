"""What the demo needs of a deployment, in this process: it behaves, and can be made to misbehave.

Bytes are tokens, and a turn's response is a function of its prompt.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from aiohttp import web

from contraflow.cli.deployment import EngineHandle, ProcessDied, RouterHandle
from contraflow.cli.deployment.metrics import PromptTokens, Samples
from contraflow.core.fleet import Role
from contraflow.v1 import router_service_pb2 as pb
from contraflow.v1 import router_service_pb2_grpc as pb_grpc
from tests.support.wait import until

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

BLOCK = 32
CALL = {"name": "read_log", "arguments": '{"service": "x", "pattern": "y"}'}


class FakeDeployment(pb_grpc.RouterServiceServicer):
    """Made by ``fake_deployment``. The knobs may be turned at any time."""

    def __init__(self) -> None:
        self.routers: tuple[RouterHandle, ...] = ()
        self.reference = EngineHandle("reference", None, "", 0, 0)
        self.run_dir = Path("/nowhere")
        self.served_by: list[str] = []
        self.plans_asked = 0
        # Knobs.
        self.corrupt_from_turn = 99
        """From this turn on one token of the response differs from the reference's."""
        self.unreported_bytes = 0
        self.forgetful = False
        """Nothing is ever pulled."""
        self.scrapes_behind = 3
        """How often metrics are asked for before they show a turn."""
        self.plans_behind = 3
        """How often a plan is asked for before the session is in the router's view."""
        self.failure: ProcessDied | None = None

        self._counted = self._shown = PromptTokens()
        self._behind = 0
        self._history: list[int] = []
        self._prompt: list[int] = []

    def engine(self, role: Role | str) -> EngineHandle:
        """The one engine of a role."""
        return EngineHandle(f"{role}-1", Role(role), "", 0, 0)

    async def metrics(self, engine: EngineHandle) -> Samples:
        """P's counters, late."""
        assert engine.role is Role.PREFILL
        self._behind -= 1
        if self._behind <= 0:
            self._shown = self._counted
        name = "vllm:prompt_tokens_by_source_total"
        return {
            f"{name}[external_kv_transfer]": self._shown.pulled,
            f"{name}[local_cache_hit]": self._shown.local,
            f"{name}[local_compute]": self._shown.computed,
            "vllm:nixl_bytes_transferred_sum": self._shown.bytes,
        }

    async def death(self) -> ProcessDied:
        """Waits for ever, or until ``failure`` is set."""
        await until(lambda: self.failure is not None, "a death")
        assert self.failure is not None
        return self.failure

    async def PlanTurn(
        self, request: pb.PlanTurnRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.PlanTurnResponse:
        """PULL, once the view has caught up."""
        self.plans_asked += 1
        self.plans_behind -= 1
        if self.plans_behind > 0:
            return pb.PlanTurnResponse(decision=pb.DECISION_RECOMPUTE)
        tokens = len(self._history) - 1
        return pb.PlanTurnResponse(decision=pb.DECISION_PULL, handle_tokens=tokens)

    async def EndSession(
        self, request: pb.EndSessionRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.EndSessionResponse:
        """Nobody asks."""
        return pb.EndSessionResponse()

    async def Generate(
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Nobody asks."""
        return
        yield

    async def ListViewEngines(
        self, request: pb.ListViewEnginesRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ListViewEnginesResponse:
        """Nobody asks."""
        return pb.ListViewEnginesResponse()

    async def chat(self, router: str, request: web.Request) -> web.StreamResponse:
        """A router's front door."""
        body = await request.json()
        self.served_by.append(router)
        prompt = [5] * 50 + list(json.dumps(body["messages"]).encode())
        # The history is rendered as it was generated: that is what the demo's template does.
        if self._history:
            new = json.dumps(body["messages"][-1])
            prompt = self._history + list(new.encode())
        measured = self._prefill(prompt)
        output = generate(prompt)
        if len(self.served_by) >= self.corrupt_from_turn:
            output[7] ^= 1
        self._prompt, self._history = prompt, prompt + output
        report = (
            f"decision={'PULL' if measured.pulled else 'RECOMPUTE'}; pulled={measured.pulled}; "
            f"local={measured.local}; computed={measured.computed}; bytes={measured.bytes}"
        )
        response = web.StreamResponse(headers={"x-contraflow": report})
        await response.prepare(request)
        for chunk in chunks(prompt, output, forced="structured_outputs" in body):
            await response.write(b"data: " + chunk + b"\n\n")
        return response

    async def complete(self, request: web.Request) -> web.Response:
        """The reference."""
        body = await request.json()
        return web.json_response({"choices": [{"token_ids": generate(body["prompt"])}]})

    def _prefill(self, prompt: list[int]) -> PromptTokens:
        local = len(self._prompt) // BLOCK * BLOCK
        held = max(local, len(self._history) - 1)
        pulled = 0 if self.forgetful else held - local
        measured = PromptTokens(pulled, local, len(prompt) - local - pulled, pulled * 64)
        total = [self._counted, measured, PromptTokens(bytes=self.unreported_bytes)]
        self._counted = PromptTokens(
            pulled=sum(part.pulled for part in total),
            local=sum(part.local for part in total),
            computed=sum(part.computed for part in total),
            bytes=sum(part.bytes for part in total),
        )
        self._behind = self.scrapes_behind
        return measured


def generate(prompt: list[int]) -> list[int]:
    """64 tokens that depend on every token of the prompt."""
    digest = hashlib.sha512(bytes(prompt)).digest()
    return [token % 128 for token in digest]


def chunks(prompt: list[int], output: list[int], *, forced: bool) -> list[bytes]:
    """The stream of a response, as vLLM writes it."""
    delta: dict[str, Any] = {"content": "words"}
    if forced:
        delta = {"tool_calls": [{"index": 0, "id": "call-1", "function": CALL}]}
    parts: list[dict[str, Any]] = [
        {"choices": [{"delta": {"role": "assistant", "content": ""}}], "prompt_token_ids": prompt},
        {"choices": [{"delta": delta, "token_ids": output[:-1]}]},
        {
            "choices": [
                {
                    "delta": {},
                    "token_ids": output[-1:],
                    "finish_reason": "tool_calls" if forced else "length",
                }
            ]
        },
    ]
    return [*(json.dumps(part).encode() for part in parts), b"[DONE]"]


@asynccontextmanager
async def fake_deployment() -> AsyncIterator[FakeDeployment]:
    """Two routers and the reference, serving."""
    fake = FakeDeployment()
    plans = grpc.aio.server()
    pb_grpc.add_RouterServiceServicer_to_server(fake, plans)
    target = f"127.0.0.1:{plans.add_insecure_port('127.0.0.1:0')}"
    await plans.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(plans.stop, None)
        for name in ("router-1", "router-2"):
            url = await stack.enter_async_context(_serving(partial(fake.chat, name), fake.complete))
            fake.routers += (RouterHandle(name, url, target),)
        fake.reference = replace(fake.reference, endpoint=fake.routers[0].http)
        yield fake


@asynccontextmanager
async def _serving(chat: Handler, complete: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_post("/v1/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
