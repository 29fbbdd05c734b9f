"""Scenarios 22, 23, 29, 30: what looks alike and is not, and what can not be read or cut."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.sim_pair import BLOCK, Pair, a_pair, a_prompt, expected

from contraflow.core.chain import Chain, Context, Item
from contraflow.core.transfer_params import OURS

TOKENS = list(range(100, 150))
SAME_TEXT = {
    "plain": Context("m", 16),
    "adapter": Context("m", 16, lora_name="x"),
    "salt": Context("m", 16, cache_salt="x"),
    "adapter and salt": Context("m", 16, lora_name="x", cache_salt="y"),
    "the other way round": Context("m", 16, lora_name="y", cache_salt="x"),
    "cut elsewhere": Context("m", 16, lora_name="xy"),
    "image": Context("m", 16, items=(Item("cat.png", 4, 8),)),
    "another image": Context("m", 16, items=(Item("dog.png", 4, 8),)),
    "image elsewhere": Context("m", 16, items=(Item("cat.png", 5, 8),)),
    "image named like an adapter": Context("m", 16, items=(Item("x", 4, 8),)),
}


@pytest.mark.parametrize("name", SAME_TEXT)
def test_scenario_22_the_same_text_matches_only_itself(name: str) -> None:
    proof = Chain(SAME_TEXT[name]).proof(TOKENS, len(TOKENS))
    matching = [
        other for other, context in SAME_TEXT.items() if Chain(context).proven(proof, TOKENS)
    ]
    assert matching == [name]


async def next_turn(pair: Pair, salt: str, other: str) -> tuple[list[int], str, list[int]]:
    """Outcome and answer of a prompt under the salt ``other`` that goes on from one under
    ``salt``; the prompt first."""
    prompt = a_prompt(3 * BLOCK)
    leg = pair.for_decode_leg(await pair.prefilled(prompt))
    first = await pair.ask(pair.decode, prompt, leg, max_tokens=40, cache_salt=salt)
    pair.prefill.clear_prefix_cache()
    history = [*prompt, *first.tokens, *a_prompt(9)]
    params = pair.for_pull(pair.claim())
    answer = await pair.ask(pair.prefill, history, params, max_tokens=1, cache_salt=other)
    return history, answer.pull["outcome"], answer.tokens


@pytest.mark.parametrize(("other", "outcome"), [("x", "PULLED"), ("y", "DECLINED_MISMATCH")])
async def test_scenario_22_a_handle_is_pulled_under_its_own_salt_only(
    other: str, outcome: str
) -> None:
    async with a_pair() as pair:
        history, came_to, tokens = await next_turn(pair, "x", other)
        assert came_to == outcome
        assert tokens == await expected(history, 1)
        assert len(pair.handles()) == (outcome != "PULLED")


@pytest.mark.parametrize(
    "decode",
    [{"vllm_version": "0.32"}, {"kv_dtype": "fp8"}, {"tp_size": 2}, {"block_size": 2 * BLOCK}],
    ids=str,
)
async def test_scenario_23_a_handle_of_another_layout_is_computed_instead(
    decode: dict[str, Any],
) -> None:
    """Even where a plan would have overlooked it."""
    async with a_pair(decode=decode) as pair:
        prompt = a_prompt(4 * BLOCK)
        first = await pair.turn(prompt, max_tokens=40)
        size = pair.decode.options.block_size
        assert first.tokens == await expected(prompt, 40, block_size=size)
        pair.prefill.clear_prefix_cache()
        history = [*prompt, *first.tokens, *a_prompt(9)]
        answer = await pair.prefilled(history, pair.for_pull(pair.claim()))
        assert answer.tokens == await expected(history, 1)
        assert answer.pull["pulled_tokens"] == 0
        assert answer.last.num_cached_tokens == 0


@pytest.mark.parametrize("kept", [0, 1, 2 * BLOCK, 3 * BLOCK + 10, 3 * BLOCK + 38])
async def test_scenario_29_what_can_not_be_trimmed_is_never_trimmed(kept: int) -> None:
    """``kept`` tokens of a handle of 87 are those of the next prompt."""
    async with a_pair(trimmable=False) as pair:
        prompt = a_prompt(3 * BLOCK)
        first = await pair.turn(prompt, max_tokens=40)
        pair.prefill.clear_prefix_cache()
        handle = pair.claim()
        assert handle.num_tokens == 3 * BLOCK + 39
        history = [*[*prompt, *first.tokens][:kept], 33, *a_prompt(60, 5)]
        answer = await pair.prefilled(history, pair.for_pull(handle))
        assert answer.pull["outcome"] == "DECLINED_MISMATCH"
        assert answer.tokens == await expected(history, 1)
        assert [one.handle_id for one in pair.handles()] == [handle.handle_id]


async def test_scenario_29_a_turn_that_goes_on_pulls_the_whole_handle() -> None:
    async with a_pair(trimmable=False) as pair:
        prompt = a_prompt(3 * BLOCK)
        first = await pair.turn(prompt, max_tokens=40)
        pair.prefill.clear_prefix_cache()
        history = [*prompt, *first.tokens, *a_prompt(9)]
        prefilled = await pair.prefilled(history, pair.for_pull(pair.claim()))
        assert prefilled.pull["pulled_tokens"] == 3 * BLOCK + 39
        second = await pair.ask(pair.decode, history, pair.for_decode_leg(prefilled))
        assert second.tokens == await expected(history)


async def test_scenario_30_decode_computes_a_prompt_that_drifted() -> None:
    """Its template renders one token otherwise than the one at P."""
    async with a_pair() as pair:
        prefilled = await pair.prefilled(a_prompt(3 * BLOCK))
        for drifted in ([*a_prompt(3 * BLOCK)[:-1], 33], [33, *a_prompt(3 * BLOCK)[1:]]):
            leg = pair.for_decode_leg(prefilled)
            assert leg[OURS]["tip"]
            answer = await pair.ask(pair.decode, drifted, leg)
            assert answer.tokens == await expected(drifted)
            assert answer.last.num_cached_tokens == 0
