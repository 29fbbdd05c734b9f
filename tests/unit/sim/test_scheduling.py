"""Batches, preemption, the prefix cache, and what a request may not ask for."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.clock import ManualClock
from tests.support.sim_pair import BLOCK, a_pair, a_prompt, expected, played, soon

from contraflow.sim.engine import SimEngine
from contraflow.sim.fabric import MemoryFabric
from contraflow.sim.options import SimOptions


async def test_requests_that_run_together_do_not_touch_each_other() -> None:
    prompts = [a_prompt(10 + 7 * i, i) for i in range(8)]
    async with a_pair(max_num_seqs=3) as pair:
        answers = await asyncio.gather(*(pair.ask(pair.decode, p) for p in prompts))
        assert [a.tokens for a in answers] == [await expected(p) for p in prompts]
        await pair.nothing_is_held()


@pytest.mark.parametrize("version", ["0.32", "0.33"])
async def test_who_is_preempted_computes_again_and_answers_the_same(version: str) -> None:
    prompts = [a_prompt(4 * BLOCK, i) for i in range(3)]
    async with a_pair(num_blocks=15, vllm_version=version) as pair:
        answers = await asyncio.gather(*(pair.ask(pair.decode, p, max_tokens=90) for p in prompts))
        assert pair.decode.counters.preemptions > 0
        assert [a.tokens for a in answers] == [await expected(p, 90) for p in prompts]
        assert pair.decode.counters.prompt_tokens_computed == 3 * 4 * BLOCK
        await pair.nothing_is_held()


async def test_who_is_preempted_after_a_pull_is_not_pulled_for_again() -> None:
    prompt = a_prompt(4 * BLOCK)
    async with a_pair(decode={"num_blocks": 15}) as pair:
        leg = pair.for_decode_leg(await pair.prefilled(prompt))
        other = asyncio.create_task(pair.ask(pair.decode, a_prompt(60, 3), max_tokens=150))
        await soon(lambda: pair.decode.counters.requests_running == 1, "the first runs")
        answer = await pair.ask(pair.decode, prompt, leg, max_tokens=90)
        assert pair.decode.counters.preemptions > 0
        assert answer.tokens == await expected(prompt, 90)
        assert (await other).tokens == await expected(a_prompt(60, 3), 150)
        assert len(pair.decode.counters.nixl_transfers) == 1
        await pair.nothing_is_held(pair.prefill)


async def test_prefill_that_is_preempted_after_a_pull_computes_the_rest_itself() -> None:
    async with a_pair(prefill={"num_blocks": 15}) as pair:
        first = await pair.turn(a_prompt(4 * BLOCK))
        await pair.nothing_is_held(pair.prefill)
        pair.prefill.clear_prefix_cache()
        history = [*a_prompt(4 * BLOCK), *first.tokens, *a_prompt(3)]
        other = asyncio.create_task(pair.ask(pair.prefill, a_prompt(60, 3), max_tokens=150))
        await soon(lambda: pair.prefill.counters.requests_running == 1, "the first runs")
        answer = await pair.ask(pair.prefill, history, pair.for_pull(pair.claim()), max_tokens=90)
        assert pair.prefill.counters.preemptions > 0
        assert answer.tokens == await expected(history, 90)
        assert (await other).tokens == await expected(a_prompt(60, 3), 150)
        assert len(pair.prefill.counters.nixl_transfers) == 1


@pytest.mark.parametrize(("version", "overtakes"), [("0.32", False), ("0.33", True)])
async def test_only_the_later_release_looks_behind_a_request_that_does_not_fit(
    version: str, overtakes: bool
) -> None:
    async with a_pair(num_blocks=15, vllm_version=version) as pair:
        ended: list[str] = []

        async def run(name: str, length: int, made: int) -> None:
            await pair.ask(pair.decode, a_prompt(length, len(name)), max_tokens=made)
            ended.append(name)

        running = asyncio.create_task(run("first", 5 * BLOCK, 60))
        await soon(lambda: pair.decode.counters.requests_running == 1, "the first runs")
        await asyncio.gather(run("big", 10 * BLOCK, 1), run("small", BLOCK, 1), running)
        assert ended == (["small", "first", "big"] if overtakes else ["first", "big", "small"])


async def test_an_answer_that_fills_the_pool_ends_by_length() -> None:
    async with a_pair(num_blocks=5) as pair:
        answer = await pair.ask(pair.decode, a_prompt(20), max_tokens=1000)
        assert answer.last.finish_reason == "length"
        assert len(answer.tokens) == 4 * BLOCK - 20


async def test_a_prompt_that_can_not_be_served_is_refused_before_it_runs() -> None:
    async with a_pair(num_blocks=5, max_model_len=100) as pair:
        for prompt in ([], a_prompt(4 * BLOCK)):
            with pytest.raises(ValueError, match="the prompt"):
                pair.start(pair.decode, prompt)
        with pytest.raises(ValueError, match="max_tokens"):
            pair.start(pair.decode, a_prompt(5), max_tokens=0)
        assert pair.decode.counters.requests_waiting == 0


async def test_a_prefix_is_found_under_its_own_salt_only() -> None:
    prompt = a_prompt(3 * BLOCK)
    async with a_pair() as pair:
        cached = [
            (await pair.ask(pair.decode, prompt, cache_salt=salt)).last.num_cached_tokens
            for salt in ("", "a", "b", "a", "")
        ]
        assert cached == [0, 0, 0, 2 * BLOCK, 2 * BLOCK]


async def test_generated_tokens_are_found_too_and_the_cache_can_be_cleared() -> None:
    async with a_pair() as pair:
        first = await pair.ask(pair.decode, a_prompt(20), max_tokens=40)
        history = [*a_prompt(20), *first.tokens, 33]
        second = await pair.ask(pair.decode, history)
        assert second.last.num_cached_tokens == 3 * BLOCK
        assert second.tokens == await expected(history)
        pair.decode.clear_prefix_cache()
        assert (await pair.ask(pair.decode, history)).last.num_cached_tokens == 0


async def test_counters_tell_where_prompt_tokens_came_from() -> None:
    prompt = a_prompt(50)
    async with a_pair(profile="cpu-demo") as pair:
        await played(pair.clock, pair.turn(prompt))
        await played(pair.clock, pair.ask(pair.decode, prompt))
        counts = pair.decode.counters
        assert counts.prompt_tokens_external == 50
        assert counts.prompt_tokens_local_cache_hit == 3 * BLOCK
        assert counts.prompt_tokens_computed == 2
        assert counts.generation_tokens == 40
        assert counts.nixl_bytes == 4 * BLOCK * 8192
        assert counts.nixl_descriptors == 4
        assert counts.nixl_transfers == [pytest.approx(0.005 + 4 * BLOCK * 8192 / 300e6)]
        assert counts.finished == {"length": 2}


async def test_time_is_the_clocks_and_follows_the_profile() -> None:
    async with a_pair(profile="cpu-demo") as pair:
        began = pair.clock.now()
        await played(pair.clock, pair.ask(pair.decode, a_prompt(700), max_tokens=11))
        assert pair.clock.now() - began == pytest.approx(700 / 3500 + 10 * 0.003)
        leg = pair.for_decode_leg(await played(pair.clock, pair.prefilled(a_prompt(700, 3))))
        began = pair.clock.now()
        await played(pair.clock, pair.ask(pair.decode, a_prompt(700, 3), leg, max_tokens=11))
        pull = 0.005 + 44 * BLOCK * 8192 / 300e6
        assert pair.clock.now() - began == pytest.approx(pull + 1 / 3500 + 10 * 0.003)


async def test_a_mask_that_fails_costs_its_own_request_only() -> None:
    def fails(_: list[int]) -> set[int]:
        raise ZeroDivisionError

    async with a_pair() as pair:
        other = asyncio.create_task(pair.ask(pair.decode, a_prompt(20), max_tokens=50))
        with pytest.raises(ZeroDivisionError):
            await pair.ask(pair.decode, a_prompt(20), mask=fails)
        assert (await other).tokens == await expected(a_prompt(20), 50)
        await pair.nothing_is_held()


async def test_scenario_09_each_start_is_another_engine() -> None:
    engines = [
        SimEngine(SimOptions(engine_id="d"), clock=ManualClock(), fabric=MemoryFabric())
        for _ in range(2)
    ]
    ids = {engine.engine_id for engine in engines}
    assert len(ids) == 2
    assert all(one.startswith("d-") for one in ids)
    assert len({engine.description.boot_nonce for engine in engines}) == 2


async def test_a_request_that_is_never_read_never_runs() -> None:
    async with a_pair() as pair:
        pair.start(pair.decode, a_prompt(20))
        assert pair.decode.counters.requests_waiting == 0


def test_options_that_no_engine_can_have_are_refused() -> None:
    for fields, what in (
        ({"vllm_version": "0.31"}, "vllm_version"),
        ({"role": "both"}, "role"),
        ({"profile": "fast"}, "profile"),
        ({"block_size": 0}, "block_size"),
        ({"agent": "unix:/a.sock"}, "endpoint"),
    ):
        with pytest.raises(ValueError, match=what):
            SimOptions(**fields)
