"""Conversations on several servers: what is sent, in which order, and what becomes of failures."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
from tests.support.clock import ManualClock
from tests.support.scripted_openai import TOKENS_PER_WORD, Received, ScriptedServer, refuses
from tests.support.wait import until

from contraflow.bench.multiturn.driver import Driver, Way, tokens_per_word
from contraflow.bench.multiturn.endpoint import Endpoint, Leg
from contraflow.bench.multiturn.history import ChatHistory, TokenHistory
from contraflow.bench.multiturn.measured import TurnId
from contraflow.bench.multiturn.workload import Conversation, Fork, Turn, Workload
from contraflow.runtime.clock import Clock, SystemClock
from contraflow.web import Responder, UpstreamClient

TURN = Turn(6, 2)
PLAIN = Workload("x", tuple(Conversation(n, 20, (TURN,) * 3) for n in range(3)), 10)
FORKED = Workload("x", (Conversation(0, 20, (TURN,) * 3, (Fork(2, (TURN,) * 2),)),))


class World:
    """Servers in this process with one log, and drivers of them."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._client = UpstreamClient()
        stack.callback(self._client.close)
        self.log: list[Received] = []
        self.servers: dict[str, ScriptedServer] = {}

    async def serve(self, *names: str) -> None:
        for name in names:
            server = ScriptedServer(name, self.log)
            self.servers[name] = await self._stack.enter_async_context(server.serving())

    def endpoint(self, name: str, clock: Clock | None = None, **kind: bool) -> Endpoint:
        leg = Leg(name, self.servers[name].origin, **kind)
        return Endpoint(leg, self._client, clock or SystemClock(), timeout=30, api_key="key")

    def driver(
        self, workload: Workload, clock: Clock | None = None, *, run: str = "r",
        kinds: Mapping[str, Mapping[str, bool]] | None = None, way: dict[str, Any] | None = None,
    ) -> Driver:  # fmt: skip
        clock = clock or SystemClock()
        endpoints = [
            self.endpoint(name, clock, **(kinds or {}).get(name, {})) for name in self.servers
        ]
        fields: dict[str, Any] = {
            "models": {name: f"model-of-{name}" for name in self.servers}, "run": run,
            "new_history": lambda _: ChatHistory(), **(way or {}),
        }  # fmt: skip
        return Driver(workload, endpoints, Way(**fields), clock)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        yield World(stack)


def on(server: str, number: int, act: Callable[[Responder], bool]) -> Any:
    """Meets the n-th request of a server, from 1."""
    seen = 0

    def meet(received: Received, responder: Responder) -> bool:
        nonlocal seen
        seen += received.server == server
        return seen == number and act(responder)

    return meet


@pytest.mark.parametrize("clients", [1, 2, 9])
async def test_every_turn_is_sent_to_every_leg_once(world: World, clients: int) -> None:
    await world.serve("a", "b")
    driver = world.driver(PLAIN)
    await driver.run(clients)
    turns = [TurnId(n, 0, turn) for n in range(3) for turn in (1, 2, 3)]
    measured = Counter((sample.leg, sample.turn) for sample in driver.results.samples)
    assert measured == Counter((leg, turn) for leg in "ab" for turn in turns)
    assert not driver.results.failures
    sent = Counter((one.server, one.session, len(one.said)) for one in world.log)
    assert set(sent.values()) == {1}
    assert len(sent) == 18


async def test_legs_take_turns_and_none_is_always_first(world: World) -> None:
    await world.serve("a", "b", "c")
    await world.driver(PLAIN).run(1)
    groups = [world.log[at : at + 3] for at in range(0, len(world.log), 3)]
    for group in groups:
        assert {one.server for one in group} == {"a", "b", "c"}
        assert len({len(one.said) for one in group}) == 1
    assert {group[0].server for group in groups} == {"a", "b", "c"}


async def test_a_history_grows_by_what_its_own_leg_has_answered(world: World) -> None:
    await world.serve("a", "b")
    await world.driver(Workload("x", PLAIN.conversations[:1])).run(1)
    for name in "ab":
        first, second, third = [one.said for one in world.log if one.server == name]
        assert [len(text.split()) for text in first] == [26]
        assert second[:2] == [*first, f"{name}/1"]
        assert third[:4] == [*second, f"{name}/2"]
        assert len(third[-1].split()) == 6
    assert world.log[0].body["max_tokens"] == 2
    assert {one.key for one in world.log} == {"Bearer key"}
    assert {one.body["model"] for one in world.log} == {"model-of-a", "model-of-b"}


async def test_legs_and_runs_share_no_prompt_and_equal_runs_share_all(world: World) -> None:
    await world.serve("a", "b")
    for run in ("one", "one", "two"):
        await world.driver(PLAIN, run=run).run(1)
    size = len(world.log) // 3
    opened = [
        sorted((one.server, one.said[0]) for one in world.log[at : at + size])
        for at in (0, size, 2 * size)
    ]
    assert opened[0] == opened[1]
    assert not set(opened[0]) & set(opened[2])
    texts = {name: {said for server, said in opened[0] if server == name} for name in "ab"}
    assert not texts["a"] & texts["b"]
    # All conversations of a leg begin with ten words in common.
    assert len({tuple(said.split()[:10]) for said in texts["a"]}) == 1
    assert len({tuple(said.split()[:12]) for said in texts["a"]}) == 3


async def test_a_branch_begins_at_its_turn_and_leaves_the_trunk_alone(world: World) -> None:
    await world.serve("a")
    driver = world.driver(FORKED)
    await driver.run(1)
    one, two, fork_three, fork_four, three = [received.said for received in world.log]
    assert fork_three[:4] == three[:4] == [*two, "a/2"]
    assert two[:2] == [*one, "a/1"]
    assert fork_three[4] != three[4]
    assert fork_four[:6] == [*fork_three, "a/3"]
    assert len(three) == 5
    assert [sample.turn for sample in driver.results.samples] == [
        TurnId(0, 0, 1), TurnId(0, 0, 2), TurnId(0, 1, 3), TurnId(0, 1, 4), TurnId(0, 0, 3),
    ]  # fmt: skip
    assert len({received.session for received in world.log}) == 1


def cut(responder: Responder) -> bool:
    responder.start(200, [(b"content-type", b"text/event-stream")])
    responder.finish(b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n')
    return True


def errs(responder: Responder) -> bool:
    responder.respond(200, [], b'data: {"error": {"message": "lost"}}\n\ndata: [DONE]\n\n')
    return True


def silent(responder: Responder) -> bool:
    responder.respond(200, [], b"data: [DONE]\n\n")
    return True


def babbles(responder: Responder) -> bool:
    responder.respond(200, [], b"data: 17\n\ndata: [DONE]\n\n")
    return True


@pytest.mark.parametrize(
    ("act", "told"),
    [(refuses, "answered 503"), (cut, r"without \[DONE\]"), (errs, "lost"),
     (silent, "not a single token"), (babbles, "not what the API promises")],
)  # fmt: skip
async def test_a_failed_turn_is_counted_with_what_hung_on_it_and_not_measured(
    world: World, act: Callable[[Responder], bool], told: str
) -> None:
    await world.serve("a", "b")
    world.servers["b"].meet = on("b", 2, act)
    driver = world.driver(FORKED)
    await driver.run(1)
    (failure,) = driver.results.failures
    assert (failure.leg, failure.turn, failure.lost) == ("b", TurnId(0, 0, 2), 3)
    assert re.search(told, failure.error)
    assert [sample.turn for sample in driver.results.of("b")] == [TurnId(0, 0, 1)]
    assert len(list(driver.results.of("a"))) == 5
    assert Counter(one.server for one in world.log) == {"a": 5, "b": 2}


async def test_a_failure_on_a_branch_leaves_the_trunk_going(world: World) -> None:
    await world.serve("a")
    world.servers["a"].meet = on("a", 3, refuses)
    driver = world.driver(FORKED)
    await driver.run(1)
    (failure,) = driver.results.failures
    assert (failure.turn, failure.lost) == (TurnId(0, 1, 3), 1)
    assert driver.results.samples[-1].turn == TurnId(0, 0, 3)


async def test_pauses_are_the_clocks(world: World) -> None:
    await world.serve("a")
    clock = ManualClock()
    turns = (TURN, Turn(6, 2, think_seconds=5.0))
    driver = world.driver(Workload("x", (Conversation(0, 9, turns),)), clock)
    running = asyncio.create_task(driver.run(1))
    await clock.wait_for_sleepers()
    assert len(world.log) == len(driver.results.samples) == 1
    clock.advance(5.0)
    await running
    assert len(world.log) == 2


async def test_cancelled_it_has_what_was_measured(world: World) -> None:
    await world.serve("a")
    server = world.servers["a"]

    def stop(received: Received, responder: Responder) -> bool:
        if len(world.log) == 2:
            server.gate.clear()
        return False

    server.meet = stop
    driver = world.driver(PLAIN)
    running = asyncio.create_task(driver.run(1))
    await until(lambda: len(world.log) == 3, "a third request")
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert running.cancelled()
    assert len(driver.results.samples) == 2


async def test_salts_are_fresh_on_the_legs_that_ask_for_it(world: World) -> None:
    await world.serve("a", "b")
    await world.driver(FORKED, kinds={"b": {"fresh_salt": True}}).run(1)
    salts = [one.body["cache_salt"] for one in world.log if one.server == "b"]
    assert len(set(salts)) == len(salts) == 5
    assert not any("cache_salt" in one.body for one in world.log if one.server == "a")


async def test_a_primed_leg_gets_each_history_once_more_before_its_next_turn(world: World) -> None:
    await world.serve("a", "b")
    driver = world.driver(
        Workload("x", PLAIN.conversations[:1]), kinds={"b": {"primed": True}}
    )  # fmt: skip
    await driver.run(1)
    sent = {
        name: [
            (len(one.said), one.body["max_tokens"]) for one in world.log if one.server == name
        ]
        for name in "ab"
    }  # fmt: skip
    assert sent == {
        "a": [(1, 2), (3, 2), (5, 2)], "b": [(1, 2), (2, 1), (3, 2), (4, 1), (5, 2)],
    }  # fmt: skip
    prompts = [one.said for one in world.log if one.server == "b"]
    assert prompts[2][:2] == prompts[1]
    assert [sample.turn.turn for sample in driver.results.of("b")] == [1, 2, 3]


async def test_a_history_that_can_not_be_sent_again_is_a_failed_turn(world: World) -> None:
    await world.serve("a")
    world.servers["a"].meet = on("a", 2, refuses)
    driver = world.driver(PLAIN, kinds={"a": {"primed": True}})
    await driver.run(1)
    assert driver.results.failures[0].turn == TurnId(0, 0, 2)


async def test_bodies_name_the_conversation_on_the_legs_that_ask_for_it(world: World) -> None:
    await world.serve("a", "b")
    await world.driver(PLAIN, kinds={"b": {"conversation_id": True}}).run(1)
    for one in world.log:
        assert one.session
        assert one.body.get("conversation_id") == (one.session if one.server == "b" else None)


async def test_what_the_server_tells_of_prefill_comes_with_the_sample(world: World) -> None:
    await world.serve("a")
    world.servers["a"].report = "decision=PULL; pulled=48; local=0"
    driver = world.driver(FORKED)
    await driver.run(1)
    sample = driver.results.samples[0]
    assert (sample.told("pulled"), sample.told("local"), sample.told("bytes")) == (48, 0, None)
    assert sample.told("decision") is None
    assert (sample.prompt_tokens, sample.output_tokens) == (26 * TOKENS_PER_WORD + 7, 2)


async def test_a_server_without_ids_is_told_from_one_with_them(world: World) -> None:
    await world.serve("a")
    answer = b'data: {"choices": [{"text": "x"}]}\n\ndata: [DONE]\n\n'

    def plain(received: Received, responder: Responder) -> bool:
        responder.respond(200, [], answer)
        return True

    world.servers["a"].meet = plain
    driver = world.driver(FORKED, way={"new_history": lambda _: TokenHistory()})
    await driver.run(1)
    assert "--api chat" in driver.results.failures[0].error


async def test_a_stream_may_end_without_a_newline(world: World) -> None:
    await world.serve("a")
    answer = b'data: {"choices": [{"text": "x"}]}\r\n\r\n: still here\n\ndata: [DONE]'

    def plain(received: Received, responder: Responder) -> bool:
        responder.respond(200, [], answer)
        return True

    world.servers["a"].meet = plain
    driver = world.driver(FORKED)
    await driver.run(1)
    assert not driver.results.failures
    assert {sample.prompt_tokens for sample in driver.results.samples} == {None}


async def test_a_word_is_as_long_as_the_server_counts(world: World) -> None:
    await world.serve("a")
    assert await tokens_per_word(world.endpoint("a"), "m", "r") == TOKENS_PER_WORD
