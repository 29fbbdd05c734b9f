"""Whatever is asked of two engines, in whatever order: right answers, and no block is lost."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.sim_pair import BLOCK, TOLD, Pair, a_pair, a_prompt, expected

from contraflow.core.errors import ContraflowError
from contraflow.core.handle import ClaimRequest
from contraflow.core.transfer_params import OURS, Params
from contraflow.sim.engine import SimEngine

DEADLINE_SECONDS = 60.0


@dataclass
class Conversation:
    """One session and what has been said in it."""

    key: str
    history: list[int]
    turns: int = 0
    answers: list[tuple[list[int], list[int]]] = field(default_factory=list)


@dataclass(frozen=True)
class Step:
    """One turn. ``forgets``: P's prefix cache is cleared before. ``patience``: outputs after
    which a leg is given up; more than it has: never."""

    conversation: int
    more: int
    made: int
    pulls: bool
    forgets: bool
    rewrites: bool
    patience: int
    pause: float


STEPS = st.lists(
    st.builds(
        Step,
        conversation=st.integers(0, 3),
        more=st.integers(1, 60),
        made=st.integers(1, 120),
        pulls=st.sampled_from([True, True, False]),
        forgets=st.booleans(),
        rewrites=st.sampled_from([False, False, True]),
        patience=st.sampled_from([1000, 1000, 1000, 1000, 20, 2, 1, 0]),
        pause=st.sampled_from([0.0, 0.0, 0.001, 0.02, 1.0, 50.0]),
    ),
    min_size=6,
    max_size=20,
)


class GivenUp(Exception):
    """The client is gone."""


class Client:
    """Talks to a pair as a router would, several turns at once."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.talks = [Conversation(f"{i:032x}", a_prompt(10 * i + 7, i)) for i in range(4)]
        self._claims = 0

    async def turn(self, step: Step) -> None:
        talk = self.talks[step.conversation]
        talk.turns += 1
        if step.rewrites and len(talk.history) > 20:
            talk.history[len(talk.history) // 2] ^= 1
        if len(talk.history) + step.more + step.made >= self.pair.decode.pool.capacity * BLOCK:
            talk.history = a_prompt(9, talk.turns)
        prompt = [*talk.history, *a_prompt(step.more, talk.turns)]
        if step.forgets:
            self.pair.prefill.clear_prefix_cache()
        told = TOLD.to_json() | {"session_key": talk.key}
        params = {"do_remote_decode": True, "do_remote_prefill": False, OURS: told}
        if step.pulls and (pulling := self.claimed(talk)) is not None:
            params = pulling
        try:
            _, prefilled = await self.leg(self.pair.prefill, prompt, params, 1, step.patience)
            if prefilled is None:
                return
            tip = prefilled[OURS]["tip"]
            decode = {k: v for k, v in prefilled.items() if k != OURS} | {
                OURS: {**told, "tip": tip}
            }
            tokens, _ = await self.leg(
                self.pair.decode, prompt, decode, step.made, step.patience - 1
            )
        except GivenUp:
            return
        talk.answers.append((prompt, tokens))
        talk.history = [*prompt, *tokens]

    def claimed(self, talk: Conversation) -> Params | None:
        self._claims += 1
        request = ClaimRequest(f"c{self._claims}", TOLD.tenant, talk.key, 60.0, 10.0)
        try:
            params = self.pair.for_pull(self.pair.decode.retained.acquire(request))
        except ContraflowError:
            return None
        return params | {OURS: {**params[OURS], "session_key": talk.key}}

    async def leg(
        self, engine: SimEngine, prompt: list[int], params: Params, made: int, patience: int
    ) -> tuple[list[int], Params | None]:
        stream = self.pair.start(engine, prompt, params, max_tokens=made)
        tokens: list[int] = []
        try:
            outputs = 0
            waiting = asyncio.ensure_future(anext(stream))
            if patience <= 0:
                await self.pair.clock.sleep(0.004)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                raise GivenUp
            output = await waiting
            while True:
                tokens += output.token_ids
                outputs += 1
                if output.finish_reason is not None:
                    assert output.finish_reason == "length"
                    return tokens, output.kv_transfer_params
                if outputs >= patience:
                    raise GivenUp
                output = await anext(stream)
        finally:
            await stream.aclose()


async def played(steps: list[Step], blocks: int, version: str) -> None:
    async with a_pair(profile="cpu-demo", num_blocks=blocks, vllm_version=version) as pair:
        client, clock = Client(pair), pair.clock

        async def in_order(conversation: int) -> None:
            for step in steps:
                if step.conversation == conversation:
                    await clock.sleep(step.pause)
                    await client.turn(step)

        tasks = [asyncio.ensure_future(in_order(i)) for i in range(4)]
        while not all(task.done() for task in tasks):
            for _ in range(30):
                await asyncio.sleep(0)
            clock.advance_to_next()
        await asyncio.gather(*tasks)
        for _ in range(60):  # all leases run out
            clock.advance(10.0)
            for _ in range(40):
                await asyncio.sleep(0)
        for engine in (pair.prefill, pair.decode):
            assert engine._failure is None
            assert engine.pool.num_free == engine.pool.capacity
            assert not engine._scheduler.held
            assert not engine._scheduler.live()
            assert engine._transfer is not None
            assert not engine._transfer._reqs_in_batch
            assert not engine._transfer._reads
            assert not engine._transfer.heartbeats
            assert engine.counters.nixl_notifications_after_expiry == 0
        assert pair.handles() == []
        for talk in client.talks:
            for prompt, tokens in talk.answers:
                assert tokens == await expected(prompt, len(tokens))


@settings(max_examples=40, deadline=None)
@given(
    steps=STEPS,
    blocks=st.sampled_from([18, 30, 60, 400]),
    version=st.sampled_from(["0.32", "0.33"]),
)
def test_right_answers_and_no_block_is_lost(steps: list[Step], blocks: int, version: str) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await played(steps, blocks, version)

    asyncio.run(bounded())
