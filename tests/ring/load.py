"""Conversations over both routers, for as long as they are let: with pauses, forks and rewritten
pasts, some of them without a session id. A seed decides what is said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from time import monotonic
from typing import Any

import aiohttp
import msgspec

from contraflow.cli.deployment import MODEL_NAME
from contraflow.router.report import parse_header
from contraflow.sim.http.chat import chat_prompt
from contraflow.verify.client import Outcome, take_body
from tests.ring.fleet import Fleet
from tests.ring.history import History, Turn
from tests.ring.layout import ROUTERS
from tests.support.wait import until

_CONVERSATIONS = 24
_THINK_SECONDS = 1.0
_PATIENCE_SECONDS = 60.0
_WORDS = ("alpha", "bravo", "carbon", "delta", "echo", "foxtrot", "golf", "hotel", "india")


@dataclass
class Past:
    """What a turn goes on from. Token ids with a session id, without one messages."""

    session: str
    prompt: list[int]
    messages: list[dict[str, str]]
    turns: int = 0

    @property
    def name(self) -> str:
        """For people."""
        return self.session or f"the one that begins {self.messages[0]['content'][:20]!r}"

    def take(self, outcome: Outcome) -> None:
        """The answer of a turn."""
        self.turns += 1
        if self.session:
            self.prompt += outcome.ids
        else:
            self.messages.append({"role": "assistant", "content": outcome.text})

    def say(self, text: str) -> None:
        """What the client says next."""
        if self.session:
            self.prompt += text.encode()
        else:
            self.messages.append({"role": "user", "content": text})

    def copy(self) -> Past:
        """Of a fork."""
        return Past(self.session, list(self.prompt), list(self.messages), self.turns)


class Clients:
    """Holds turns and records them."""

    def __init__(self, fleet: Fleet, history: History) -> None:
        self._fleet = fleet
        self.history = history
        self.under_way: set[Turn] = set()
        self.good = 0
        """Turns that have ended well."""
        self.pulled = 0
        """Those of them with a pull."""

    async def turn(self, past: Past, router: str, tokens: int, *, stream: bool = False) -> Turn:
        """Hold one; through the other router if this one refuses connections."""
        path, body = _request(past, tokens, stream)
        prompt = list(past.prompt) or chat_prompt(past.messages, ())
        turn = Turn(past.name, past.turns + 1, router, prompt, tokens, monotonic(), 0, Outcome())
        self.under_way.add(turn)
        try:
            for turn.router in (router, *(one for one in ROUTERS if one != router)):
                if await self._ask(turn, path, body, stream):
                    break
            else:
                turn.outcome.error = "every router refuses connections"
        finally:
            self.under_way.discard(turn)
        turn.ended = monotonic()
        self.history.turns.append(turn)
        if turn.good:
            self.good += 1
            self.pulled += turn.pulled
            past.take(turn.outcome)
        return turn

    async def until_turned_over(self) -> None:
        """Returns once every turn that is under way now has ended."""
        begun = set(self.under_way)
        await until(lambda: not begun & self.under_way, "the turns end", _PATIENCE_SECONDS)

    async def until_more(self, turns: int) -> None:
        """Returns once so many turns have ended well from now on, and one of them has pulled."""
        enough, pulled = self.good + turns, self.pulled

        def more() -> bool:
            return self.good >= enough and self.pulled > pulled

        await until(more, f"{turns} turns end well, one with a pull", _PATIENCE_SECONDS)

    async def _ask(self, turn: Turn, path: str, body: dict[str, Any], stream: bool) -> bool:
        """False if it was not even sent."""
        outcome, url = turn.outcome, self._fleet.layout.http(turn.router) + path
        data = bytearray()
        try:
            async with (
                asyncio.timeout(_PATIENCE_SECONDS),
                self._fleet.http.post(url, json=body, timeout=_NONE) as response,
            ):
                outcome.status = response.status
                outcome.report = parse_header(response.headers.get("x-contraflow", ""))
                async for piece in response.content.iter_any():
                    data += piece
        except TimeoutError:
            outcome.hung = True
        except aiohttp.ClientConnectorError:
            return False
        except (aiohttp.ClientError, OSError) as error:
            outcome.error = f"the connection broke: {error!r}"
        if data and (stream or not outcome.error):
            _read(outcome, bytes(data), stream)
        return True


class Load:
    """Conversations one after the other, so many at a time, until it is told to stop."""

    def __init__(self, clients: Clients, seed: str) -> None:
        self._clients = clients
        self._seed = seed
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        """Returns once it was stopped and the last turn has ended."""
        async with asyncio.TaskGroup() as group:
            for number in range(_CONVERSATIONS):
                group.create_task(self._talk(number))

    def stop(self) -> None:
        """No more turns."""
        self._stopped.set()

    async def _talk(self, number: int) -> None:
        random = Random(f"{self._seed}/{number}")
        conversations = 0
        while not self._stopped.is_set():
            conversations += 1
            session = f"{self._seed}/{number}/{conversations}" if number % 3 else ""
            past = begin(random, session)
            await self._hold(random, past, random.randint(2, 6))

    async def _hold(self, random: Random, past: Past, turns: int) -> None:
        while past.turns < turns and await self._thought(random):
            if past.turns and random.random() < 0.15:
                await self._fork(random, past, turns)
                return
            if past.turns and random.random() < 0.15:
                rewrite(random, past)
            if not await self._turn(random, past):
                return  # a client that was failed begins anew

    async def _fork(self, random: Random, past: Past, turns: int) -> None:
        """Branches that all go on at once, and then each as it likes."""

        async def branch(random: Random, past: Past) -> None:
            if await self._turn(random, past):
                await self._hold(random, past, turns)

        branches = [branch(Random(random.getrandbits(64)), past.copy()) for _ in range(2)]
        await asyncio.gather(*branches)

    async def _turn(self, random: Random, past: Past) -> bool:
        """True if it ended well."""
        if past.turns:
            past.say(text(random, 40))
        # Long answers are worth a pull also where prefill has all that it has computed itself.
        router, tokens = random.choice(ROUTERS), random.choice((8, 30, 110))
        turn = await self._clients.turn(past, router, tokens, stream=random.random() < 0.5)
        return turn.good

    async def _thought(self, random: Random) -> bool:
        """False if nothing more is to be said."""
        try:
            async with asyncio.timeout(random.expovariate(1 / _THINK_SECONDS)):
                await self._stopped.wait()
        except TimeoutError:
            return True
        return False


@asynccontextmanager
async def load(clients: Clients, seed: str) -> AsyncIterator[None]:
    """Runs during the context, and has ended after it."""
    load = Load(clients, seed)
    running = asyncio.ensure_future(load.run())
    try:
        yield
        load.stop()
        await running
    except AssertionError as error:
        if running.done():
            error.add_note(f"the conversations have ended too early: {running!r}")
        raise
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def begin(random: Random, session: str) -> Past:
    """A new conversation."""
    opening = text(random, 300)
    messages = [{"role": "system", "content": opening}, {"role": "user", "content": "hello"}]
    return Past(session, list(opening.encode()) if session else [], messages)


def rewrite(random: Random, past: Past) -> None:
    """As where reasoning is stripped, or a template drifts: what engines hold is another past."""
    if past.session:
        at = random.randrange(len(past.prompt) // 2, len(past.prompt))
        past.prompt[at : at + random.choice((0, 1, 9))] = text(random, 5).encode()
    else:
        at = random.randrange(1, len(past.messages))
        said = past.messages[at]
        past.messages[at] = {**said, "content": said["content"][:-4] + "edit"}


def text(random: Random, length: int) -> str:
    """Some words."""
    words: list[str] = []
    while sum(map(len, words)) + len(words) < length:
        words.append(f"{random.choice(_WORDS)}{random.randrange(100)}")
    return " ".join(words)


_NONE = aiohttp.ClientTimeout(total=None)


def _request(past: Past, tokens: int, stream: bool) -> tuple[str, dict[str, Any]]:
    body: dict[str, Any] = {
        "model": MODEL_NAME, "temperature": 0, "ignore_eos": True, "max_tokens": tokens,
        "return_token_ids": True, "stream": stream,
    }  # fmt: skip
    if past.session:
        return "/v1/completions", body | {"prompt": past.prompt, "session_id": past.session}
    return "/v1/chat/completions", body | {"messages": past.messages}


def _read(outcome: Outcome, data: bytes, stream: bool) -> None:
    broken, outcome.error = outcome.error, ""
    try:
        take_body(outcome, data, stream)
    except (msgspec.DecodeError, LookupError) as error:
        outcome.error = f"the answer can not be read: {error!r}"
    if broken:
        outcome.error, outcome.whole = broken, False
