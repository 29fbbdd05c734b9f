"""Conversations as agents hold them: chats of ten turns, with and without a session id, forks."""

from __future__ import annotations

import asyncio
import itertools
import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from contraflow.cli.deployment import MODEL_NAME
from contraflow.router.report import parse_header

TURNS = 10
Message = dict[str, Any]


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
    forks_at: int = 0
    turns: list[Said] = field(default_factory=list)

    def fork(self) -> Conversation:
        """Another branch with the same past."""
        return Conversation(self.session, list(self.messages))


class Script:
    """Deterministic conversations. Every text that a client sends holds a marker."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.markers: list[str] = []

    def conversations(self, count: int) -> Iterator[Conversation]:
        """Every other one without a session id; one in ten forks at its fifth turn."""
        for number in range(count):
            session = "" if number % 2 else f"fleet-{uuid.uuid4()}"
            system = {"role": "system", "content": f"You are agent {number}. {self.text()}"}
            yield Conversation(session, [system], forks_at=5 if number % 10 in (3, 6) else 0)

    def text(self) -> str:
        """Some words and a marker."""
        marker = "".join(self._random.choices("bcdfghjkmnpqrstvwxz", k=14))
        self.markers.append(marker)
        words = ("".join(self._random.choices("aeiounstr", k=5)) for _ in range(8))
        return " ".join(itertools.chain(words, [marker]))


class Client:
    """Holds conversations through routers, in turn."""

    def __init__(
        self, http: aiohttp.ClientSession, routers: list[str], script: Script, at_once: int
    ) -> None:
        self._http = http
        self._routers = itertools.cycle(routers)
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
            "max_tokens": 24 + number,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        if conversation.session:
            body["session_id"] = conversation.session
        url = f"{next(self._routers)}/v1/chat/completions"
        async with self._turns, self._http.post(url, json=body) as response:
            answer = await response.json()
            assert response.status == 200, answer
            report = parse_header(response.headers["x-contraflow"])
        choice = answer["choices"][0]
        conversation.messages.append({"role": "assistant", "content": choice["message"]["content"]})
        conversation.turns.append(
            Said(number, answer["prompt_token_ids"], choice["token_ids"], report)
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
