"""Conversations as agents hold them: chats of ten turns, with and without a session id, forks."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import grpc
from tests.support.wait import until_good

from contraflow.cli.deployment import MODEL_NAME, RouterHandle
from contraflow.router.report import parse_header
from contraflow.router.tenancy import DEFAULT_TENANT
from contraflow.v1.router_service_pb2 import DECISION_PULL, PlanTurnRequest
from contraflow.v1.router_service_pb2_grpc import RouterServiceStub

TURNS = 10
MOVES_AT = 6
Message = dict[str, Any]
_NO_PROXY = [("grpc.enable_http_proxy", 0)]


@dataclass
class Said:
    """One turn: what was sent, what came, and what the router says of it."""

    number: int
    prompt_ids: list[int]
    output_ids: list[int]
    report: dict[str, str]


@dataclass
class Conversation:
    """One branch. ``session`` is empty where it is found by its messages."""

    session: str
    messages: list[Message]
    router: int
    forks_at: int = 0
    moves: bool = False
    turns: list[Said] = field(default_factory=list)

    def fork(self) -> Conversation:
        """Another branch with the same past."""
        return Conversation(self.session, list(self.messages), self.router)


class Script:
    """Deterministic conversations. Every text that a client sends holds a marker."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.markers: list[str] = []

    def conversations(self, count: int) -> Iterator[Conversation]:
        """Every other one without a session id; one in five forks after its fifth turn."""
        for number in range(count):
            session = "" if number % 2 else f"fleet-{uuid.uuid4()}"
            system = {"role": "system", "content": f"You are agent {number}. {self.text()}"}
            forks = number % 10 in (3, 6)
            yield Conversation(
                session, [system], number // 2, forks_at=5 if forks else 0, moves=not forks
            )

    def text(self) -> str:
        """Some words and a marker."""
        marker = "".join(self._random.choices("bcdfghjkmnpqrstvwxz", k=14))
        self.markers.append(marker)
        words = ("".join(self._random.choices("aeiounstr", k=5)) for _ in range(8))
        return " ".join(itertools.chain(words, [marker]))


class Client:
    """Holds conversations, each through one router; those that do not fork move to another one
    at their sixth turn, once it has heard of them."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        routers: Sequence[RouterHandle],
        script: Script,
        at_once: int,
    ) -> None:
        self._http = http
        self._routers = routers
        self._script = script
        self._turns = asyncio.Semaphore(at_once)

    async def hold(self, conversation: Conversation) -> list[Conversation]:
        """All turns of a conversation; it, and the branch that it forked into."""
        branches = [conversation]
        async with asyncio.TaskGroup() as group:
            while len(conversation.messages) < 2 * TURNS:
                if conversation.forks_at and len(conversation.turns) == conversation.forks_at:
                    conversation.forks_at = 0
                    branches.append(conversation.fork())
                    group.create_task(self.hold(branches[-1]))
                await self._turn(conversation)
        return branches

    async def _turn(self, conversation: Conversation) -> None:
        number = len(conversation.messages) // 2 + 1
        conversation.messages.append({"role": "user", "content": self._script.text()})
        body = {
            "model": MODEL_NAME,
            "messages": conversation.messages,
            "max_tokens": 90 + number,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        if conversation.session:
            body["session_id"] = conversation.session
        if conversation.moves and number == MOVES_AT:
            conversation.router += 1
            await self._until_known(conversation, body)
        url = f"{self._router(conversation).http}/v1/chat/completions"
        async with self._turns, self._http.post(url, json=body) as response:
            answer = await response.json()
            assert response.status == 200, answer
            report = parse_header(response.headers["x-contraflow"])
        choice = answer["choices"][0]
        conversation.messages.append({"role": "assistant", "content": choice["message"]["content"]})
        conversation.turns.append(
            Said(number, answer["prompt_token_ids"], choice["token_ids"], report)
        )

    def _router(self, conversation: Conversation) -> RouterHandle:
        return self._routers[conversation.router % len(self._routers)]

    async def _until_known(self, conversation: Conversation, body: Mapping[str, Any]) -> None:
        target = self._router(conversation).grpc
        request = PlanTurnRequest(tenant=DEFAULT_TENANT, openai_json=json.dumps(body))
        async with grpc.aio.insecure_channel(target, _NO_PROXY) as channel:
            stub = RouterServiceStub(channel)
            await until_good(
                lambda: stub.PlanTurn(request, timeout=10),
                lambda plan: plan.decision == DECISION_PULL,
            )


async def reference(http: aiohttp.ClientSession, endpoint: str, said: Said) -> list[int]:
    """What one plain engine generates for the very prompt of a turn."""
    body = {
        "model": MODEL_NAME,
        "prompt": said.prompt_ids,
        "max_tokens": len(said.output_ids),
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    async with http.post(f"{endpoint}/v1/completions", json=body) as response:
        answer = await response.json()
    ids: list[int] = answer["choices"][0]["token_ids"]
    return ids
