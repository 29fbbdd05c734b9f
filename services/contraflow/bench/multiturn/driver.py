"""Holds the conversations of a workload on several legs, turn by turn in alternation.

A client sends a turn to one leg after the other, each waiting for the one before, and begins
with another leg each time: what slows the machine for a while slows all legs alike, and so does
what they do to each other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from contraflow.bench.multiturn.endpoint import Endpoint, Reply, TurnError
from contraflow.bench.multiturn.history import CHAT_PATH, History, words
from contraflow.bench.multiturn.measured import Failure, Results, Sample, TurnId
from contraflow.bench.multiturn.workload import Conversation, Turn, Workload
from contraflow.runtime.clock import Clock

_CALIBRATION = (50, 450)
_ALWAYS: Mapping[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}

Histories = dict[str, History]
"""By leg."""


@dataclass(frozen=True, slots=True)
class Way:
    """How turns are asked for. ``models`` are the names by leg, ``extra`` goes into every request.

    ``run`` tells runs apart: prompts of two with one ``run`` are equal, others have nothing in
    common.
    """

    models: Mapping[str, str]
    run: str
    new_history: Callable[[str], History]
    """Of a leg, by its name."""
    extra: Mapping[str, Any] = field(default_factory=dict)


class Driver:
    """Fills ``results`` as it goes on, so that they are there when it is cancelled too."""

    def __init__(
        self, workload: Workload, endpoints: Sequence[Endpoint], way: Way, clock: Clock,
        on_turn: Callable[[Sample | Failure], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self.results = Results()
        self._workload, self._endpoints, self._way = workload, endpoints, way
        self._clock, self._on_turn = clock, on_turn

    async def run(self, clients: int) -> None:
        """All conversations, each by one of so many clients at once."""
        waiting = deque(self._workload.conversations)

        async def client() -> None:
            while waiting:
                await self._converse(waiting.popleft())

        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(client())

    async def _converse(self, conversation: Conversation) -> None:
        histories: Histories = {}
        for endpoint in self._endpoints:
            name = endpoint.leg.name
            history = histories[name] = self._way.new_history(name)
            if common := self._workload.common_prefix_tokens:
                history.say(common, Random(f"{self._way.run}/{name}/common"))
            if conversation.prefix_tokens:
                history.say(conversation.prefix_tokens, self._random(name, conversation, "prefix"))
        for number, turn in enumerate(conversation.turns, 1):
            await self._turn(conversation, 0, number, turn, histories)
            for branch, fork in enumerate(conversation.forks, 1):
                if fork.after == number:
                    copies = {name: history.copy() for name, history in histories.items()}
                    for later, one in enumerate(fork.turns, number + 1):
                        await self._turn(conversation, branch, later, one, copies)

    async def _turn(
        self, conversation: Conversation, branch: int, number: int, turn: Turn, histories: Histories
    ) -> None:
        """On every leg that has a history still; one that fails loses it."""
        if histories and turn.think_seconds:
            await self._clock.sleep(turn.think_seconds)
        which = TurnId(conversation.number, branch, number)
        begins = (conversation.number + number) % len(self._endpoints)
        for endpoint in (*self._endpoints[begins:], *self._endpoints[:begins]):
            name = endpoint.leg.name
            if name not in histories:
                continue
            history = histories[name]
            random = self._random(name, conversation, f"{branch}/{number}")
            try:
                if endpoint.leg.primed and number > 1:
                    await self._send(endpoint, history, which, 1)
                history.say(turn.input_tokens, random)
                reply = await self._ask(endpoint, history, which, turn)
            except TurnError as error:
                del histories[name]
                lost = conversation.lost_after(branch, number)
                failure = Failure(name, which, str(error), lost)
                self.results.failures.append(failure)
                self._on_turn(failure)
            else:
                sample = _sample(name, which, reply)
                self.results.samples.append(sample)
                self._on_turn(sample)

    async def _ask(self, endpoint: Endpoint, history: History, which: TurnId, turn: Turn) -> Reply:
        reply = await self._send(endpoint, history, which, turn.output_tokens)
        try:
            history.hear(reply.answer())
        except ValueError as error:
            raise TurnError(str(error)) from None
        return reply

    async def _send(
        self, endpoint: Endpoint, history: History, which: TurnId, output_tokens: int
    ) -> Reply:
        leg, way = endpoint.leg, self._way
        body = {
            "model": way.models[leg.name], "max_tokens": output_tokens,
            **history.body(), **_ALWAYS, **way.extra,
        }  # fmt: skip
        if leg.fresh_salt:
            salt = f"{way.run}/{leg.name}/{which.conversation}/{which.branch}/{which.turn}"
            body["cache_salt"] = salt
        session = f"bench-{way.run}-{leg.name}-{which.conversation}"
        if leg.conversation_id:
            body["conversation_id"] = session
        return await endpoint.send(history.path, body, session)

    def _random(self, leg: str, conversation: Conversation, what: str) -> Random:
        return Random(f"{self._way.run}/{leg}/{conversation.number}/{what}")


async def tokens_per_word(endpoint: Endpoint, model: str, run: str) -> float | None:
    """What a word of ours comes to in a server's vocabulary; None if it tells no usage.

    Raises TurnError.
    """
    counted = []
    for count in _CALIBRATION:
        said = words(count, Random(f"{run}/{endpoint.leg.name}/calibration/{count}"))
        body = {
            "model": model, "messages": [{"role": "user", "content": said}], "max_tokens": 1,
            **_ALWAYS,
        }  # fmt: skip
        reply = await endpoint.send(CHAT_PATH, body, "")
        counted.append(reply.prompt_tokens)
    short, long = counted
    if short is None or long is None or long <= short:
        return None
    return (long - short) / (_CALIBRATION[1] - _CALIBRATION[0])


def _sample(leg: str, which: TurnId, reply: Reply) -> Sample:
    assert reply.first is not None
    assert reply.last is not None
    output = reply.output_tokens or len(reply.token_ids or ()) or reply.chunks
    return Sample(
        leg=leg,
        turn=which,
        prompt_tokens=reply.prompt_tokens,
        output_tokens=output,
        ttft=reply.first,
        tpot=(reply.last - reply.first) / (output - 1) if output > 1 else None,
        e2e=reply.end,
        cached_tokens=reply.cached_tokens,
        report=reply.report,
    )
