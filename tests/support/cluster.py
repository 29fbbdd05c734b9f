"""A running deployment as the real-engine tests see it: turns, claims, the reference."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import tomllib
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc

from contraflow.cli.deployment import (
    MODEL_NAME,
    Deployment,
    EngineKind,
    PromptTokens,
    prompt_tokens,
)
from contraflow.cli.deployment.control_plane import engines_in_view, plan_turn
from contraflow.cli.deployment.engine_command import EngineHandle
from contraflow.cli.deployment.http_client import connect, post_json
from contraflow.core.fleet import Role
from contraflow.core.handle import LIVE
from contraflow.core.session import session_key
from contraflow.router.report import parse_header
from contraflow.router.tenancy import DEFAULT_TENANT
from contraflow.v1 import agent_service_pb2 as agent_pb
from contraflow.v1 import handle_pb2
from contraflow.v1.agent_service_pb2_grpc import AgentServiceStub
from contraflow.v1.router_service_pb2 import DECISION_PULL
from tests.support.expected import ASKED, expected
from tests.support.wait import until_good

_GREEDY = {"model": MODEL_NAME, "temperature": 0, "return_token_ids": True, "ignore_eos": True}


@dataclass(frozen=True)
class Reply:
    """An answer. ``report`` is what the router says of the turn; ``body`` the whole JSON."""

    status: int
    body: Mapping[str, Any]
    report: Mapping[str, str] = field(default_factory=dict)

    @property
    def ids(self) -> list[int]:
        """Generated token ids."""
        ids: list[int] = self.body["choices"][0]["token_ids"]
        return ids

    def tokens(self, name: str) -> int:
        """A count of the report: pulled, local, computed, bytes."""
        return int(self.report[name])


@dataclass(frozen=True)
class Stream:
    """A request on a connection of its own."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def first_token(self) -> None:
        """Returns once the answer has begun."""
        await self.reader.readuntil(b"data:")

    async def end(self) -> None:
        """Returns once the answer is complete."""
        await self.reader.readuntil(b"data: [DONE]")

    def leave(self) -> None:
        """Break the connection."""
        self.writer.transport.abort()


class Cluster:
    """Deterministic prompts, turns through a router or straight to an engine."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self._random = random.Random(7)
        config = tomllib.loads((deployment.run_dir / "router-1.toml").read_text())
        self._secret = config["cluster_secret"].encode()
        self.prefill = deployment.engine(Role.PREFILL)
        self.decode = deployment.engine(Role.DECODE)

    def text(self, length: int) -> list[int]:
        """Random token ids of printable text."""
        return [self._random.randrange(40, 120) for _ in range(length)]

    @staticmethod
    def session() -> str:
        """A session id that nobody has used."""
        return f"test-{uuid.uuid4()}"

    def key(self, session: str) -> str:
        """What the rest of the system calls a session."""
        return session_key(self._secret, DEFAULT_TENANT, session)

    async def turn(
        self, prompt: Sequence[int], session: str, tokens: int = 40, router: int = 0, **fields: Any
    ) -> Reply:
        """A turn through a router, not streamed, its prompt given as ids."""
        body = {
            **_GREEDY,
            "prompt": list(prompt),
            "max_tokens": tokens,
            "session_id": session,
            **fields,
        }
        return await asyncio.to_thread(
            _post, self.deployment.routers[router].http, "/v1/completions", body
        )

    async def stream(self, prompt: Sequence[int], session: str, tokens: int) -> Stream:
        """A streamed turn through the first router that has been sent and not yet answered."""
        host, _, port = self.deployment.routers[0].http.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
        body = json.dumps({
            **_GREEDY, "prompt": list(prompt), "max_tokens": tokens, "session_id": session,
            "stream": True,
        }).encode()  # fmt: skip
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(body), body)
        )
        await writer.drain()
        return Stream(reader, writer)

    async def leg(
        self,
        engine: EngineHandle,
        prompt: Sequence[int],
        params: object,
        tokens: int = 1,
        **fields: Any,
    ) -> Reply:
        """One leg straight to an engine."""
        body = {
            **_GREEDY,
            "prompt": list(prompt),
            "max_tokens": tokens,
            "kv_transfer_params": params,
            **fields,
        }
        return await asyncio.to_thread(_post, engine.endpoint, "/v1/completions", body)

    async def reference(self, prompt: Sequence[int], tokens: int = 40) -> list[int]:
        """What an engine without any connector generates."""
        real = self.deployment.spec.engine is EngineKind.VLLM
        body = {**_GREEDY, "prompt": list(prompt), "max_tokens": tokens, **(ASKED if real else {})}
        answer = await post_json(self.deployment.reference.endpoint, "/v1/completions", body)
        [choice] = answer["choices"]
        ids: list[int] = expected(choice) if real else choice["token_ids"]
        return ids

    async def counted(self) -> PromptTokens:
        """What P has counted so far. Lags behind by a second or so."""
        return prompt_tokens(await self.deployment.metrics(self.prefill))

    async def counted_since(self, before: PromptTokens, tokens: int) -> PromptTokens:
        """What P has counted since, once it accounts for ``tokens`` prompt tokens."""

        async def delta() -> PromptTokens:
            return await self.counted() - before

        return await until_good(delta, lambda counted: counted.total >= tokens)

    # The owner.

    async def acquire(
        self,
        session: str,
        claim_id: str | None = None,
        *,
        tenant: str = DEFAULT_TENANT,
        engine_id: str | None = None,
        hint: str = "",
    ) -> agent_pb.AcquireHandleResponse:
        """Claim as a router would, from D by default. Raises grpc.aio.AioRpcError."""
        request = agent_pb.AcquireHandleRequest(
            claim_id=claim_id or str(uuid.uuid4()),
            tenant=tenant,
            session_key=self.key(session),
            engine_id=engine_id or await self.decode_id(),
            hint_handle_id=hint,
        )
        async with self._agent() as channel:
            return await AgentServiceStub(channel).AcquireHandle(request, timeout=5)

    async def give_back(self, claim_id: str) -> None:
        """Return a claim."""
        request = agent_pb.ReturnClaimRequest(claim_id=claim_id, engine_id=await self.decode_id())
        async with self._agent() as channel:
            await AgentServiceStub(channel).ReturnClaim(request, timeout=5)

    async def release(self, *handle_ids: str) -> list[str]:
        """Free handles; returns those that will be free."""
        request = agent_pb.ReleaseHandlesRequest(handle_ids=handle_ids)
        async with self._agent() as channel:
            answer = await AgentServiceStub(channel).ReleaseHandles(request, timeout=5)
        return list(answer.released_handle_ids)

    async def release_all(self) -> None:
        """Free what is retained of all sessions, on all engines."""
        async with self._agent() as channel:
            stub = AgentServiceStub(channel)
            handles = (await stub.ListHandles(agent_pb.ListHandlesRequest(), timeout=5)).handles
            ids = [handle.handle_id for handle in handles]
            await stub.ReleaseHandles(agent_pb.ReleaseHandlesRequest(handle_ids=ids), timeout=5)

    async def drain(
        self, draining: bool, *, release: bool = False, engine: EngineHandle | None = None
    ) -> None:
        """Take an engine, D by default, out of service, or put it back."""
        request = agent_pb.DrainEngineRequest(
            engine_id=await self.engine_id(engine or self.decode),
            draining=draining,
            release_handles=release,
        )
        async with self._agent() as channel:
            await AgentServiceStub(channel).DrainEngine(request, timeout=5)

    async def handles(self, session: str) -> list[handle_pb2.Handle]:
        """Handles of a session that the agent knows."""
        request = agent_pb.ListHandlesRequest(session_key=self.key(session))
        async with self._agent() as channel:
            answer = await AgentServiceStub(channel).ListHandles(request, timeout=5)
        return list(answer.handles)

    async def until_handles(
        self, session: str, count: int, within: float | None = None
    ) -> list[handle_pb2.Handle]:
        """The handles, once there are ``count`` of them."""
        return await until_good(
            lambda: self.handles(session), lambda found: len(found) == count, within
        )

    @asynccontextmanager
    async def last_state(self, handle: handle_pb2.Handle) -> AsyncIterator[asyncio.Task[str]]:
        """A task that has the last state of a live handle, once it has ended; for a minute."""
        listed = asyncio.Event()

        async def watch() -> str:
            request = agent_pb.WatchHandlesRequest(session_key=handle.session_key)
            async with self._agent() as channel:
                async for event in AgentServiceStub(channel).WatchHandles(request, timeout=60):
                    name = handle_pb2.HandleState.Name(event.handle.state)
                    if event.HasField("listed"):
                        listed.set()
                    elif event.handle.handle_id == handle.handle_id:
                        state = name.removeprefix("HANDLE_STATE_")
                        if state not in LIVE:
                            return state
            raise AssertionError("the watch has ended")

        task = asyncio.create_task(watch())
        try:
            await asyncio.wait_for(listed.wait(), 10)
            yield task
        finally:
            task.cancel()

    async def until_unregistered(self) -> None:
        """Returns once no router sees a registered engine."""
        for router in self.deployment.routers:
            await until_good(partial(engines_in_view, router.grpc), lambda ids: not ids)

    async def until_planned(self, session: str, router: int) -> None:
        """Returns once a router would pull a handle that the session has: the last that it has
        heard of may just have been read."""
        target = self.deployment.routers[router].grpc

        async def planned() -> bool:
            plan = await plan_turn(target, DEFAULT_TENANT, session, MODEL_NAME)
            there = [
                handle.num_tokens
                for handle in await self.handles(session)
                if handle.state == handle_pb2.HANDLE_STATE_RETAINED
            ]
            # A router that was told by the turn itself knows no number yet.
            return plan.decision == DECISION_PULL and plan.handle_tokens in (0, *there)

        await until_good(planned, bool)

    async def pinned(self, engine: EngineHandle | None = None) -> float:
        """Share of an engine's blocks in use, D's by default. Lags behind by a second or so."""
        return (await self.deployment.metrics(engine or self.decode))["vllm:kv_cache_usage_perc"]

    async def until_steady(self) -> float:
        """The share of D's blocks in use, once it has been the same for two seconds."""
        seen = [await self.pinned()]

        async def lately() -> list[float]:
            seen.append(await self.pinned())
            return seen[-40:]

        # Read every 0.05 s.
        last = await until_good(lately, lambda some: len(some) == 40 and len(set(some)) == 1)
        return last[-1]

    async def until_pinned_below(
        self, share: float, engine: EngineHandle | None = None, within: float = 45
    ) -> None:
        """Returns once an engine, D by default, has freed that much. Blocks that P has handed
        over and that nobody reads any more are held for the 30 s of their lease."""
        await until_good(partial(self.pinned, engine), lambda pinned: pinned < share, within)

    async def decode_id(self) -> str:
        """Incarnation of the decode engine."""
        return await self.engine_id(self.decode)

    async def engine_id(self, engine: EngineHandle) -> str:
        """Incarnation of an engine."""
        async with self._agent() as channel:
            answer = await AgentServiceStub(channel).ListAttachedEngines(
                agent_pb.ListAttachedEnginesRequest(), timeout=5
            )
        found: list[str] = [
            one.engine.engine_id for one in answer.engines if one.engine.endpoint == engine.endpoint
        ]
        return found[0]

    def _agent(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(
            self.deployment.addresses.agent, options=[("grpc.enable_http_proxy", 0)]
        )


def _post(base_url: str, path: str, body: Mapping[str, Any]) -> Reply:
    connection = connect(base_url, 300.0)
    try:
        data = json.dumps(body).encode()
        connection.request("POST", path, data, {"content-type": "application/json"})
        response: http.client.HTTPResponse = connection.getresponse()
        report = parse_header(response.getheader("x-contraflow", ""))
        return Reply(response.status, json.loads(response.read()), report)
    finally:
        connection.close()
