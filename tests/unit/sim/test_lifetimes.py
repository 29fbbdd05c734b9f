"""Blocks that are held: until when, for whom, and that none is forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.sim_pair import (
    BLOCK,
    TOLD,
    Answer,
    Pair,
    a_pair,
    a_prompt,
    expected,
    played,
    running,
    soon,
)

from contraflow.core.errors import HandleExpired, HandleNotFound
from contraflow.core.handle import State
from contraflow.core.transfer_params import OURS, for_plain_decode, for_plain_prefill
from contraflow.sim.api import SimOutput
from contraflow.sim.engine import SimEngine
from contraflow.sim.options import SimOptions

PROMPT = a_prompt(3 * BLOCK)
PLAIN_DECODE = for_plain_decode() | {OURS: TOLD.to_json()}


async def retained(pair: Pair, made: int = 40) -> list[int]:
    """A first turn; returns the history of the second."""
    first = await played(pair.clock, pair.turn(PROMPT, max_tokens=made))
    pair.prefill.clear_prefix_cache()
    return [*PROMPT, *first.tokens, *a_prompt(9)]


async def test_a_handle_that_nobody_claims_expires() -> None:
    async with a_pair(retention_ttl=100.0) as pair:
        await retained(pair)
        (handle,) = pair.handles()
        pair.clock.advance(99.0)
        await soon(lambda: pair.decode.counters.kv_cache_usage > 0, "blocks held")
        pair.clock.advance(1.0)
        await pair.nothing_is_held()
        assert pair.decode.counters.nixl_expired_requests == 1
        assert pair.handles() == []
        assert handle.deadline == pair.clock.now()
        with pytest.raises(HandleNotFound):
            pair.claim()
        with pytest.raises(HandleExpired):
            pair.claim(hint=handle.handle_id)


async def test_a_claim_that_is_not_read_lapses_when_its_hold_ends() -> None:
    async with a_pair() as pair:
        await retained(pair)
        states: list[State] = []
        pair.claim(start_by=20.0, max_read=5.0)
        pair.decode.retained.subscribe(lambda handle: states.append(handle.state))
        pair.clock.advance(24.0)
        await soon(lambda: pair.decode.counters.kv_cache_usage > 0, "blocks held")
        pair.clock.advance(1.0)
        await pair.nothing_is_held()
        assert states == [State.LAPSED]
        assert pair.decode.counters.nixl_expired_requests == 0


async def test_a_released_handle_is_freed_at_once() -> None:
    async with a_pair() as pair:
        await retained(pair)
        (handle,) = pair.handles()
        assert pair.decode.retained.release([handle.handle_id]) == [handle.handle_id]
        await pair.nothing_is_held()


async def test_a_superseded_handle_is_freed_as_soon_as_its_claim_is_returned() -> None:
    async with a_pair() as pair:
        history = await retained(pair)
        claimed = pair.claim("c1")
        await played(pair.clock, pair.turn(history))
        assert claimed.handle_id in {handle.handle_id for handle in pair.handles()}
        await soon(lambda: pair.prefill.pool.num_free == pair.prefill.pool.capacity, "P is done")
        free = pair.decode.pool.num_free
        pair.decode.retained.return_claim("c1")
        await soon(lambda: pair.decode.pool.num_free > free, "its blocks are free")
        assert claimed.handle_id not in {handle.handle_id for handle in pair.handles()}


async def test_a_renewed_handle_outlives_its_lease_and_is_pulled() -> None:
    async with a_pair(retention_ttl=100.0) as pair:
        history = await retained(pair)
        (handle,) = pair.handles()
        answers: list[list[str]] = []
        for _ in range(5):
            pair.clock.advance(60.0)
            pair.decode.retained.renew([handle.handle_id], 100.0, answers.append)
            await soon(lambda: bool(answers), "the workers have confirmed")
            assert answers.pop() == [handle.handle_id]
            assert pair.handles()[0].deadline == pair.clock.now() + 100.0
        answer = await pair.prefilled(history, pair.for_pull(pair.claim()))
        assert answer.pull["outcome"] == "PULLED"
        assert answer.tokens == await expected(history, 1)
        await pair.nothing_is_held(pair.decode)


async def test_a_renewed_handle_expires_when_its_last_lease_does() -> None:
    async with a_pair(retention_ttl=100.0) as pair:
        await retained(pair)
        (handle,) = pair.handles()
        pair.clock.advance(60.0)
        pair.decode.retained.renew([handle.handle_id], 100.0, lambda renewed: None)
        await soon(lambda: pair.handles()[0].deadline > handle.deadline, "it is renewed")
        pair.clock.advance(99.0)
        await soon(lambda: pair.decode.counters.kv_cache_usage > 0, "blocks held")
        pair.clock.advance(1.0)
        await pair.nothing_is_held()
        assert pair.handles() == []


async def test_an_order_to_renew_does_not_bring_back_what_is_being_freed() -> None:
    async with a_pair(retention_ttl=100.0) as pair:
        await retained(pair)
        (handle,) = pair.handles()
        answers: list[list[str]] = []
        pair.decode.retained.renew([handle.handle_id], 500.0, answers.append)
        pair.decode.retained.release([handle.handle_id])
        await pair.nothing_is_held()
        assert answers == [[]]
        pair.decode.retained.renew([handle.handle_id], 500.0, answers.append)
        assert answers == [[], []]


async def test_a_claim_that_overtakes_a_renewal_is_served() -> None:
    async with a_pair(retention_ttl=100.0) as pair:
        history = await retained(pair)
        (handle,) = pair.handles()
        answers: list[list[str]] = []
        pair.decode.retained.renew([handle.handle_id], 500.0, answers.append)
        claimed = pair.claim()
        assert claimed.deadline == handle.deadline
        answer = await pair.prefilled(history, pair.for_pull(claimed))
        assert answer.tokens == await expected(history, 1)
        await pair.nothing_is_held(pair.decode)
        assert answers == [[]]


async def test_scenario_03_a_read_too_close_to_its_expiry_is_computed_instead() -> None:
    async with a_pair() as pair:
        history = await retained(pair)
        params = pair.for_pull(pair.claim(start_by=20.0))
        pair.clock.advance(20.0)
        answer = await pair.prefilled(history, params)
        assert answer.pull["outcome"] == "FAILED"
        assert answer.tokens == await expected(history, 1)
        assert pair.prefill.counters.nixl_expired_requests == 1
        assert pair.prefill.counters.prompt_tokens_computed == len(PROMPT) + len(history)
        pair.clock.advance(10.0)
        await pair.nothing_is_held(pair.decode)


async def test_scenario_03_a_read_that_ends_after_its_hold_is_computed_again() -> None:
    async with a_pair(profile="cpu-demo") as pair:
        history = await retained(pair)
        params = pair.for_pull(pair.claim(max_read=0.001))
        pair.clock.advance(54.999)
        params["remote_blocks_expiry_time"] += 10.0
        params["contraflow_hold_until"] = pair.clock.now() + 0.5
        answer = await played(pair.clock, pair.prefilled(history, params))
        assert answer.pull["outcome"] == "FAILED"
        assert answer.pull["bytes"] > 0
        assert answer.tokens == await expected(history, 1)


async def test_a_pull_from_an_engine_that_is_gone_is_computed_instead() -> None:
    async with a_pair() as pair:
        history = await retained(pair)
        params = pair.for_pull(pair.claim())
        await pair.decode.close()
        answer = await pair.prefilled(history, params)
        assert answer.pull["outcome"] == "FAILED"
        assert answer.tokens == await expected(history, 1)
        assert answer.last.num_cached_tokens == 0
        assert pair.prefill.counters.nixl_failed_transfers == 1


async def test_scenario_08_nothing_is_read_from_another_engine_at_the_same_address() -> None:
    async with a_pair() as pair:
        history = await retained(pair)
        params = pair.for_pull(pair.claim())
        await pair.decode.close()
        port = params["remote_port"]
        successor = SimEngine(
            SimOptions(role="decode", side_port=port), clock=pair.clock, fabric=pair.fabric
        )
        async with running([successor]):
            answer = await pair.prefilled(history, params)
        assert answer.pull["outcome"] == "FAILED"
        assert answer.tokens == await expected(history, 1)


async def test_nothing_is_read_from_memory_that_was_registered_anew() -> None:
    async with a_pair() as pair:
        history = await retained(pair)
        params = pair.for_pull(pair.claim())
        params["remote_registration_generation"] += 1
        answer = await pair.prefilled(history, params)
        assert answer.pull["outcome"] == "FAILED"
        assert answer.tokens == await expected(history, 1)


async def test_scenario_08_an_engine_that_dies_during_a_read_costs_no_turn() -> None:
    async with a_pair(profile="cpu-demo") as pair:
        history = await retained(pair)
        stream = pair.start(pair.prefill, history, pair.for_pull(pair.claim()), max_tokens=1)
        first = asyncio.create_task(_next(stream))
        await pulling(pair.prefill)
        await pair.decode.close()
        await played(pair.clock, asyncio.wait_for(first, None))
        assert first.result().token_ids == await expected(history, 1)
        assert pair.prefill.counters.nixl_failed_transfers == 1


async def test_prefill_holds_its_blocks_for_thirty_seconds() -> None:
    async with a_pair() as pair:
        await pair.prefilled(PROMPT)
        pair.clock.advance(29.0)
        await soon(lambda: pair.prefill.counters.kv_cache_usage > 0, "blocks held")
        pair.clock.advance(1.0)
        await pair.nothing_is_held()
        assert pair.prefill.counters.nixl_expired_requests == 1


async def test_a_waiting_decode_engine_keeps_the_blocks_of_prefill() -> None:
    decode = {"max_num_seqs": 1, "profile": "cpu-demo"}
    async with a_pair(decode=decode) as pair:
        leg = pair.for_decode_leg(await pair.prefilled(PROMPT))

        async def behind_a_long_one() -> Answer:
            long = pair.start(pair.decode, a_prompt(20, 3), max_tokens=15_000)
            await anext(long)
            second = asyncio.create_task(pair.ask(pair.decode, PROMPT, leg))
            async for _ in long:
                pass
            return await second

        began = pair.clock.now()
        answer = await played(pair.clock, behind_a_long_one())
        assert pair.clock.now() - began > 40.0
        assert answer.last.num_cached_tokens == len(PROMPT)
        assert answer.tokens == await expected(PROMPT)
        assert pair.prefill.counters.nixl_expired_requests == 0


async def test_scenario_24_retained_blocks_yield_to_a_request_that_waits() -> None:
    async with a_pair(decode={"num_blocks": 24}) as pair:
        await retained(pair)
        assert len(pair.handles()) == 1
        answer = await pair.ask(pair.decode, a_prompt(20 * BLOCK, 9), max_tokens=2)
        assert answer.tokens == await expected(a_prompt(20 * BLOCK, 9), 2)
        assert pair.handles() == []
        await pair.nothing_is_held()


async def test_claimed_blocks_do_not_yield() -> None:
    async with a_pair(decode={"num_blocks": 24}) as pair:
        history = await retained(pair)
        params = pair.for_pull(pair.claim())
        waiting = _next(pair.start(pair.decode, a_prompt(20 * BLOCK, 9), max_tokens=2))
        task = asyncio.create_task(waiting)
        await soon(lambda: pair.decode.counters.requests_waiting == 1, "a request waits")
        pulled = await pair.prefilled(history, params)
        assert pulled.tokens == await expected(history, 1)
        assert (await task).token_ids == await expected(a_prompt(20 * BLOCK, 9), 1)


async def test_scenario_24_a_share_of_the_pool_stays_free_of_handles() -> None:
    async with a_pair(decode={"num_blocks": 41}) as pair:
        for start in range(12):
            prompt = a_prompt(3 * BLOCK, start)
            told = {**TOLD.to_json(), "session_key": f"{start:032x}"}
            leg = for_plain_decode() | {OURS: told}
            await pair.ask(pair.decode, prompt, leg, max_tokens=2)
        await soon(lambda: pair.decode.pool.num_free >= 6, "the floor is kept")
        assert len(pair.handles()) > 4


# Requests that are given up.


async def test_scenario_06_given_up_while_queued_at_prefill() -> None:
    async with a_pair(prefill={"max_num_seqs": 1, "profile": "cpu-demo"}) as pair:
        history = await retained(pair)
        busy = pair.start(pair.prefill, a_prompt(20, 3), max_tokens=1000)
        await played(pair.clock, _next(busy))
        queued = pair.start(pair.prefill, history, pair.for_pull(pair.claim()), max_tokens=1)
        task = asyncio.create_task(_next(queued))
        await soon(lambda: pair.prefill.counters.requests_waiting == 1, "a request waits")
        task.cancel()
        await busy.aclose()
        await played(pair.clock, settled(pair))
        # Its owner was told nothing: the claim lapses.
        assert [handle.state for handle in pair.handles()] == [State.CLAIMED]
        pair.clock.advance(70.0)
        await pair.nothing_is_held()


async def test_scenario_06_given_up_while_queued_at_decode() -> None:
    async with a_pair(decode={"max_num_seqs": 1, "profile": "cpu-demo"}) as pair:
        leg = pair.for_decode_leg(await pair.prefilled(PROMPT))
        busy = pair.start(pair.decode, a_prompt(20, 3), max_tokens=1000)
        await played(pair.clock, _next(busy))
        task = asyncio.create_task(_next(pair.start(pair.decode, PROMPT, leg)))
        await soon(lambda: pair.decode.counters.requests_waiting == 1, "a request waits")
        task.cancel()
        await busy.aclose()
        await played(pair.clock, settled(pair))
        await pair.nothing_is_held()  # P was told
        assert pair.prefill.counters.nixl_expired_requests == 0


async def test_scenario_06_given_up_while_pulling() -> None:
    async with a_pair(profile="cpu-demo") as pair:
        history = await retained(pair)
        stream = pair.start(pair.prefill, history, pair.for_pull(pair.claim()), max_tokens=1)
        task = asyncio.create_task(_next(stream))
        await pulling(pair.prefill)
        task.cancel()
        await soon(lambda: pair.prefill.counters.finished.get("abort") == 1, "an abort")
        # Until the read has ended, somebody writes into its blocks.
        assert pair.prefill.counters.kv_cache_usage > 0
        await played(pair.clock, settled(pair))
        await pair.nothing_is_held()
        assert pair.handles() == []


async def test_scenario_06_given_up_while_decoding() -> None:
    async with a_pair(profile="cpu-demo") as pair:
        stream = pair.start(pair.decode, PROMPT, PLAIN_DECODE, max_tokens=100)
        await played(pair.clock, _next(stream))
        await stream.aclose()
        await played(pair.clock, settled(pair))
        await pair.nothing_is_held()
        assert pair.handles() == []


async def test_scenario_06_given_up_after_it_has_finished() -> None:
    async with a_pair() as pair:
        stream = pair.start(pair.decode, PROMPT, PLAIN_DECODE, max_tokens=1)
        assert (await anext(stream)).finish_reason == "length"
        await stream.aclose()
        assert [handle.state for handle in pair.handles()] == [State.RETAINED]
        pair.clock.advance(480.0)
        await pair.nothing_is_held()


async def test_closing_an_engine_ends_its_requests() -> None:
    async with a_pair(profile="cpu-demo") as pair:
        stream = pair.start(pair.prefill, PROMPT, for_plain_prefill(), max_tokens=100)
        await played(pair.clock, _next(stream))
        await pair.prefill.close()
        outputs = [output async for output in stream]
        assert outputs[-1].finish_reason == "abort"
        with pytest.raises(RuntimeError, match="closed"):
            await pair.prefilled(PROMPT)


async def pulling(engine: Any) -> None:
    """Wait until a request of the engine is being pulled for."""
    await soon(lambda: bool(engine._scheduler.pulling), "a pull")


async def settled(pair: Pair) -> None:
    """Nothing runs, waits or pulls."""
    await soon(
        lambda: not (pair.prefill._scheduler.live() or pair.decode._scheduler.live()), "rest"
    )
    await pair.clock.sleep(1.0)


async def _next(stream: Any) -> SimOutput:
    output: SimOutput = await anext(stream)
    return output
