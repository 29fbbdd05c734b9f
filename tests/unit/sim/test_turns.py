"""Two turns between two engines: right tokens, and wrong ones where KV is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.sim_pair import BLOCK, TOLD, Pair, a_pair, a_prompt, expected, soon

from contraflow.core.errors import HandleNotFound
from contraflow.core.transfer_params import HOLD_UNTIL, OURS, for_plain_prefill

LENGTHS = [1, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK - 1, 5 * BLOCK, 5 * BLOCK + 1]


@pytest.mark.parametrize("length", LENGTHS)
async def test_decode_goes_on_from_what_prefill_computed(length: int) -> None:
    prompt = a_prompt(length)
    async with a_pair() as pair:
        answer = await pair.turn(prompt)
        assert answer.tokens == await expected(prompt)
        assert answer.last.num_cached_tokens == length
        assert answer.last.kv_transfer_params is None
        assert pair.decode.counters.prompt_tokens_external == length
        await pair.nothing_is_held(pair.prefill)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("made", [20, 27, 28, 29])
async def test_prefill_pulls_the_last_turn_back(length: int, made: int) -> None:
    async with a_pair() as pair:
        first = await pair.turn(a_prompt(length), max_tokens=made)
        pair.prefill.clear_prefix_cache()
        history = [*a_prompt(length), *first.tokens, *a_prompt(9, start=5)]
        prefilled = await pair.prefilled(history, pair.for_pull(pair.claim()))
        held = length + made - 1
        assert prefilled.pull["outcome"] == "PULLED"
        assert prefilled.pull["pulled_tokens"] == held
        assert prefilled.pull["computed_tokens"] == len(history) - held
        assert prefilled.last.num_cached_tokens == held
        second = await pair.ask(pair.decode, history, pair.for_decode_leg(prefilled))
        assert [*prefilled.tokens, *second.tokens[1:]] == await expected(history)
        assert second.tokens == await expected(history)
        (report,) = pair.links[pair.prefill.engine_id].reports
        assert (report.claim_id, report.pulled_tokens) == ("c1", held)


async def test_scenario_02_a_rewritten_history_is_pulled_up_to_where_it_differs() -> None:
    prompt = a_prompt(3 * BLOCK)
    async with a_pair() as pair:
        first = await pair.turn(prompt, max_tokens=40)
        pair.prefill.clear_prefix_cache()
        history = [*prompt, *first.tokens[:18], 33, *first.tokens[19:], *a_prompt(9)]
        second = await pair.prefilled(history, pair.for_pull(pair.claim()))
        assert second.pull["pulled_tokens"] == 4 * BLOCK
        assert second.tokens == await expected(history, 1)


async def test_scenario_29_a_hybrid_layout_is_pulled_whole_or_not_at_all() -> None:
    prompt = a_prompt(3 * BLOCK)
    async with a_pair(trimmable=False) as pair:
        first = await pair.turn(prompt, max_tokens=40)
        pair.prefill.clear_prefix_cache()
        handle = pair.claim()
        other = [*prompt, *first.tokens[:18], 33, *first.tokens[19:], *a_prompt(9)]
        declined = await pair.prefilled(other, pair.for_pull(handle))
        assert declined.pull["outcome"] == "DECLINED_MISMATCH"
        assert declined.tokens == await expected(other, 1)
        history = [*prompt, *first.tokens, *a_prompt(9)]
        pulled = await pair.prefilled(history, pair.for_pull(handle))
        assert pulled.pull["outcome"] == "PULLED"
        assert pulled.tokens == await expected(history, 1)


async def retained(pair: Pair, made: int = 40) -> list[int]:
    """A first turn over three blocks; returns the history of the second."""
    prompt = a_prompt(3 * BLOCK)
    first = await pair.turn(prompt, max_tokens=made)
    pair.prefill.clear_prefix_cache()
    return [*prompt, *first.tokens, *a_prompt(9)]


async def filled(pair: Pair) -> None:
    """Write over all of D's free blocks."""
    for start in range(1, 6):
        await pair.ask(pair.decode, a_prompt(18 * BLOCK, start), max_tokens=1)


async def test_a_read_of_blocks_that_were_reused_gives_wrong_tokens() -> None:
    async with a_pair(decode={"num_blocks": 20}) as pair:
        history = await retained(pair)
        params: dict[str, Any] = pair.for_pull(pair.claim())
        pair.clock.advance(70.0)  # the hold is over, and the reader does not look
        await pair.nothing_is_held(pair.decode)
        await filled(pair)
        del params["remote_blocks_expiry_time"]
        params[HOLD_UNTIL] += 1000.0
        answer = await pair.prefilled(history, params)
        assert answer.pull["outcome"] == "PULLED"
        assert answer.tokens != await expected(history, 1)
        counters = pair.decode.counters
        await soon(lambda: counters.nixl_notifications_after_expiry == 1, "a late notification")


async def test_what_was_spoiled_spoils_what_is_computed_after_it() -> None:
    async with a_pair() as pair:
        history = await retained(pair)
        handle = pair.claim()
        (block_id, *_), = handle.params["remote_block_ids"]  # fmt: skip
        pair.decode.pool.blocks[block_id].content.tokens[3] ^= 1
        spoiled = await pair.prefilled(history, pair.for_pull(handle))
        assert spoiled.tokens != await expected(history, 1)
        leg = pair.for_decode_leg(spoiled)
        assert (await pair.ask(pair.decode, history, leg)).last.num_cached_tokens == len(history)


async def test_the_same_tokens_after_others_are_other_kv() -> None:
    stock = {"do_remote_decode": False, "do_remote_prefill": True}
    last = a_prompt(BLOCK, 9)
    async with a_pair() as pair:
        history = [*a_prompt(BLOCK, 1), *last, *a_prompt(5)]
        leg = {"do_remote_decode": False, OURS: TOLD.to_json()}
        await pair.ask(pair.decode, history, leg)
        other = await pair.ask(pair.decode, [*a_prompt(BLOCK, 2), *last, *a_prompt(5)], stock)
        params = pair.for_pull(pair.claim())
        params["remote_block_ids"][0][1] = other.params["remote_block_ids"][0][1]
        answer = await pair.prefilled(history, params)
        assert answer.pull["outcome"] == "PULLED"
        assert answer.tokens != await expected(history, 1)


async def test_scenario_04_a_handle_is_read_once() -> None:
    async with a_pair(decode={"num_blocks": 20}) as pair:
        history = await retained(pair)
        params = pair.for_pull(pair.claim())
        right = await expected(history, 1)
        assert (await pair.prefilled(history, params)).tokens == right
        await pair.nothing_is_held(pair.decode)
        with pytest.raises(HandleNotFound):
            pair.claim("c2")
        pair.prefill.clear_prefix_cache()
        await filled(pair)
        assert (await pair.prefilled(history, params)).tokens != right


@pytest.mark.parametrize("extra", range(-2, 3))
async def test_scenario_05_prefills_own_cache_may_reach_less_or_more_far_than_the_handle(
    extra: int,
) -> None:
    async with a_pair() as pair:
        prompt = a_prompt(4 * BLOCK)
        first = await pair.turn(prompt, max_tokens=2 * BLOCK + 1)
        history = [*prompt, *first.tokens, *a_prompt(2 * BLOCK)]
        pair.prefill.clear_prefix_cache()
        found = (6 + extra) * BLOCK
        await pair.ask(pair.prefill, history[: found + 1], max_tokens=1)
        answer = await pair.prefilled(history, pair.for_pull(pair.claim()))
        assert answer.tokens == await expected(history, 1)
        assert answer.pull["local_tokens"] == found
        assert answer.pull["pulled_tokens"] == max(0, 6 * BLOCK - found)
        assert answer.pull["outcome"] == ("PULLED" if extra < 0 else "DECLINED_SMALL")
        if extra >= 0:  # declined is kept
            assert [handle.state for handle in pair.handles()] == ["CLAIMED"]


async def test_a_handle_that_is_not_wanted_is_kept_and_can_be_claimed_again() -> None:
    async with a_pair() as pair:
        history = await retained(pair)
        claimed = pair.claim()
        answer = await pair.prefilled(history, pair.for_pull(claimed, decision="RECOMPUTE"))
        assert answer.pull["outcome"] == "DECLINED_UNWANTED"
        assert answer.pull["proven_tokens"] == claimed.num_tokens
        assert (answer.pull["pulled_tokens"], answer.pull["bytes"]) == (0, 0)
        assert answer.tokens == await expected(history, 1)
        assert [handle.state for handle in pair.handles()] == ["CLAIMED"]
        pair.decode.retained.return_claim("c1")
        (kept,) = pair.handles()
        assert (kept.state, kept.deadline) == ("RETAINED", claimed.deadline)
        pair.prefill.clear_prefix_cache()
        again = await pair.prefilled(history, pair.for_pull(pair.claim("c2")))
        assert again.pull["outcome"] == "PULLED"
        assert again.tokens == await expected(history, 1)
        await soon(lambda: pair.handles() == [], "it is read")


async def test_a_handle_that_is_let_go_with_its_claim_is_freed_unread() -> None:
    async with a_pair() as pair:
        history = await retained(pair)
        claimed = pair.claim()
        answer = await pair.prefilled(history, pair.for_pull(claimed, decision="RECOMPUTE"))
        assert pair.decode.retained.release([claimed.handle_id]) == []  # the claim is first
        pair.decode.retained.return_claim("c1")
        assert pair.handles() == []
        await pair.nothing_is_held(pair.decode)
        assert answer.tokens == await expected(history, 1)


@pytest.mark.parametrize("found", [0, 1, 2])
@pytest.mark.parametrize("blocks", range(7))
async def test_just_the_blocks_that_are_wanted_are_pulled(blocks: int, found: int) -> None:
    """The handle has 87 tokens in six blocks; ``found`` blocks are in P's own cache."""
    async with a_pair() as pair:
        history = await retained(pair)
        if found:
            await pair.ask(pair.prefill, history[: found * BLOCK + 1], max_tokens=1)
        answer = await pair.prefilled(history, pair.for_pull(pair.claim(), pull_blocks=blocks))
        pulled = max(0, min(blocks * BLOCK, 87) - found * BLOCK)
        assert answer.pull["outcome"] == ("PULLED" if pulled else "DECLINED_SMALL")
        assert answer.pull["pulled_tokens"] == pulled
        assert answer.pull["descriptors"] == max(0, blocks - found)
        assert answer.tokens == await expected(history, 1)
        second = await pair.ask(pair.decode, history, pair.for_decode_leg(answer))
        assert second.tokens == await expected(history)


async def test_scenario_05_a_pull_below_the_threshold_is_declined_and_the_handle_kept() -> None:
    async with a_pair() as pair:
        history = await retained(pair)
        answer = await pair.prefilled(history, pair.for_pull(pair.claim(), min_pull_tokens=1000))
        assert answer.pull["outcome"] == "DECLINED_SMALL"
        assert answer.tokens == await expected(history, 1)
        pair.decode.retained.return_claim("c1")
        pair.prefill.clear_prefix_cache()
        again = await pair.prefilled(history, pair.for_pull(pair.claim("c2")))
        assert again.pull["outcome"] == "PULLED"
        assert again.tokens == await expected(history, 1)


async def test_decode_pulls_nothing_without_a_matching_tip_and_prefill_is_freed() -> None:
    prompt = a_prompt(50)
    async with a_pair() as pair:
        leg = pair.for_decode_leg(await pair.prefilled(prompt))
        other = [*prompt[:-1], 33]
        answer = await pair.ask(pair.decode, other, leg)
        assert answer.tokens == await expected(other)
        assert answer.last.num_cached_tokens == 0
        await pair.nothing_is_held(pair.prefill)


async def test_requests_without_our_object_are_as_vllm_has_them() -> None:
    prompt = a_prompt(50)
    async with a_pair() as pair:
        plain = await pair.ask(pair.decode, prompt)
        assert plain.last.kv_transfer_params is None
        stock = {"do_remote_decode": False, "do_remote_prefill": True}
        raw = (await pair.ask(pair.decode, prompt, stock)).params
        assert raw["do_remote_decode"] is True
        assert raw["remote_blocks_expiry_time"] == pair.clock.now() + 480.0
        assert raw["remote_num_tokens"] == 50 + 19
        assert OURS not in raw
        assert pair.handles() == []
        pair.clock.advance(480.0)
        await pair.nothing_is_held()


@pytest.mark.parametrize(("version", "has_it"), [("0.32", False), ("0.33", True)])
async def test_the_parameters_are_those_of_the_release(version: str, has_it: bool) -> None:
    async with a_pair(vllm_version=version) as pair:
        params = (await pair.prefilled(a_prompt(20))).params
        assert ("remote_registration_generation" in params) == has_it
        assert params["remote_blocks_expiry_time"] is None


@pytest.mark.parametrize(
    "decode", [{"vllm_version": "0.32"}, {"kv_dtype": "fp8"}, {"tp_size": 2}, {"trimmable": False}]
)
async def test_scenario_23_engines_of_another_class_exchange_no_block(
    decode: dict[str, Any],
) -> None:
    prompt = a_prompt(50)
    async with a_pair(decode=decode) as pair:
        answer = await pair.turn(prompt)
        assert answer.tokens == await expected(prompt)
        assert answer.last.num_cached_tokens == 0
        assert pair.decode.counters.nixl_failed_transfers == 1
        assert pair.decode.description.compatibility_class != (
            pair.prefill.description.compatibility_class
        )


async def test_a_request_that_skips_the_cache_reads_nothing_and_keeps_the_handle() -> None:
    async with a_pair() as pair:
        history = await retained(pair)
        params = pair.for_pull(pair.claim())
        answer = await pair.ask(pair.prefill, history, params, max_tokens=1, skip_prefix_cache=True)
        assert answer.tokens == await expected(history, 1)
        assert answer.last.num_cached_tokens == 0
        assert [handle.state for handle in pair.handles()] == ["CLAIMED"]


async def test_a_decode_request_that_skips_the_cache_has_prefill_freed() -> None:
    async with a_pair() as pair:
        leg = pair.for_decode_leg(await pair.prefilled(a_prompt(50)))
        answer = await pair.ask(pair.decode, a_prompt(50), leg, skip_prefix_cache=True)
        assert answer.tokens == await expected(a_prompt(50))
        assert answer.last.num_cached_tokens == 0
        await pair.nothing_is_held(pair.prefill)


async def test_an_engine_that_may_not_pull_declines_and_keeps() -> None:
    for prefill in ({"bidirectional": False}, {"kv_role": "kv_producer"}):
        async with a_pair(prefill=prefill) as pair:
            assert not pair.prefill.description.bidirectional
            history = await retained(pair)
            answer = await pair.prefilled(history, pair.for_pull(pair.claim()))
            assert answer.tokens == await expected(history, 1)
            assert answer.pull["outcome"] == "DECLINED_UNSUPPORTED"
            assert len(pair.handles()) == 1


async def test_nothing_is_retained_that_nobody_could_claim() -> None:
    async with a_pair() as pair:
        told = {OURS: {**TOLD.to_json(), "session_key": ""}}
        leg = for_plain_prefill() | {"do_remote_decode": False} | told
        await pair.ask(pair.decode, a_prompt(20), leg)
        await pair.nothing_is_held()
