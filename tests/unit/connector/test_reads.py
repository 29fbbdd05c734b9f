"""What may be pulled: decided by proof, around block boundaries, whatever was offered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from contraflow.core.chain import Chain, Context, Proof
from contraflow.core.instructions import Instructions, Pull, Tip
from contraflow.core.transfer_params import remote_blocks
from contraflow_connector.reads import (
    Outcome,
    Read,
    Verdict,
    blocks_for,
    cut_blocks,
    judge_backward,
    judge_forward,
)

SIZE = 16
CONTEXT = Context("m", SIZE)
TOKENS = [3 * i % 251 for i in range(100)]


def a_read(num_tokens: int = 100, *, trimmable: bool = True, **fields: Any) -> Read:
    proof = Chain(CONTEXT).proof(TOKENS, num_tokens, trimmable=trimmable)
    known = {
        "instructions": Instructions(decision="PULL", proof=proof),
        "forward": False,
        "remote_engine_id": "d1",
        "remote_request_id": "r1",
        "offered_tokens": num_tokens,
        "offered_blocks": [list(range(blocks_for(num_tokens, SIZE)))],
    }
    return Read(**{**known, **fields})


def judged(read: Read, prompt: list[int], local: int = 0, *, trimmable: bool = True) -> Verdict:
    return judge_backward(read, Chain(CONTEXT), prompt, local, trimmable=trimmable)


@pytest.mark.parametrize("common", [0, 1, 15, 16, 17, 63, 64, 65, 99])
def test_scenario_02_a_pull_ends_with_the_last_block_in_common(common: int) -> None:
    prompt = [*TOKENS[:common], *([255] * 40)]
    whole = common // SIZE * SIZE
    expected = (whole, Outcome.PULLED) if whole else (0, Outcome.DECLINED_MISMATCH)
    verdict = judged(a_read(), prompt)
    assert (verdict.tokens, verdict.outcome, verdict.proven) == (*expected, whole)


@pytest.mark.parametrize("num_tokens", [47, 48, 49])
def test_a_handle_that_the_prompt_continues_is_pulled_whole(num_tokens: int) -> None:
    assert judged(a_read(num_tokens), TOKENS) == Verdict(num_tokens, Outcome.PULLED, num_tokens)


@pytest.mark.parametrize("length", [47, 48, 49])
def test_scenario_17_one_token_at_least_is_left_to_compute(length: int) -> None:
    whole = length // SIZE * SIZE
    assert judged(a_read(), TOKENS[:length]).tokens == min(whole, length - 1)
    assert judged(a_read(length), TOKENS[:length]).tokens == length - 1


@pytest.mark.parametrize("local", [31, 32, 33, 100])
def test_what_is_local_already_is_not_worth_a_pull(local: int) -> None:
    prompt = TOKENS[:40]
    verdict = judged(a_read(), prompt, local)
    if local < 32:
        assert verdict == Verdict(32, Outcome.PULLED, 32)
    else:
        assert verdict == Verdict(0, Outcome.DECLINED_SMALL, 32)


def test_scenario_05_the_router_says_how_little_is_too_little() -> None:
    told = a_read().instructions
    for least, outcome in ((68, Outcome.PULLED), (69, Outcome.DECLINED_SMALL)):
        read = a_read(instructions=replace(told, min_pull_tokens=least))
        assert judged(read, [*TOKENS, 1], local=32).outcome is outcome


@pytest.mark.parametrize("decision", ["RECOMPUTE", "", "pull", "PULL_LATER"])
def test_what_the_router_does_not_want_is_compared_and_not_pulled(decision: str) -> None:
    read = a_read(instructions=replace(a_read().instructions, decision=decision))
    for prompt, proven in (([*TOKENS, 1], 100), ([*TOKENS[:40], 255], 32), ([255] * 9, 0)):
        verdict = judged(read, prompt, local=100)
        assert verdict == Verdict(0, Outcome.DECLINED_UNWANTED, proven)


@pytest.mark.parametrize(("blocks", "tokens"), [(1, 16), (6, 96), (7, 100), (8, 100), (10**9, 100)])
def test_the_router_says_which_blocks_are_pulled(blocks: int, tokens: int) -> None:
    read = a_read(instructions=replace(a_read().instructions, pull_blocks=blocks))
    assert judged(read, [*TOKENS, 1]) == Verdict(tokens, Outcome.PULLED, 100)
    # No more than is proven, and nothing if the reader has that many itself.
    proven = min(tokens, 64)
    assert judged(read, [*TOKENS[:70], 255]) == Verdict(proven, Outcome.PULLED, 64)
    small = Verdict(0, Outcome.DECLINED_SMALL, 100)
    assert judged(read, [*TOKENS, 1], local=tokens) == small
    none = a_read(instructions=replace(read.instructions, pull_blocks=0))
    assert judged(none, [*TOKENS, 1]) == small


def test_scenario_29_a_part_of_what_can_not_be_trimmed_is_not_pulled() -> None:
    told = a_read(trimmable=False).instructions
    for blocks, verdict in (
        (6, Verdict(0, Outcome.DECLINED_UNSUPPORTED, 100)),
        (7, Verdict(100, Outcome.PULLED, 100)),
    ):
        read = a_read(instructions=replace(told, pull_blocks=blocks))
        assert judged(read, [*TOKENS, 1]) == verdict


@pytest.mark.parametrize(
    ("ours", "theirs"), [(True, False), (False, True), (False, False)], ids=str
)
def test_scenario_29_what_can_not_be_trimmed_is_pulled_whole_or_not(
    ours: bool, theirs: bool
) -> None:
    # A window's group holds its last blocks only.
    blocks = [list(range(7)), [5, 6]] if not ours else [list(range(7))]
    read = a_read(trimmable=theirs, offered_blocks=blocks)
    assert judged(read, [*TOKENS, 1], trimmable=ours).tokens == 100
    for prompt in (TOKENS, [*TOKENS[:99], 255, 255], TOKENS[:64]):
        assert judged(read, prompt, trimmable=ours).outcome is Outcome.DECLINED_MISMATCH
    short = replace(read, offered_tokens=96)
    assert judged(short, [*TOKENS, 1], trimmable=ours).tokens == 0


@pytest.mark.parametrize("proof", [None, Proof(SIZE, 100, b"", bytes(16))])
def test_without_a_proof_nothing_is_pulled(proof: Proof | None) -> None:
    read = a_read(instructions=Instructions(decision="PULL", proof=proof))
    outcome = Outcome.DECLINED_MISMATCH if proof else Outcome.DECLINED_NO_PROOF
    assert judged(read, [*TOKENS, 1]) == Verdict(0, outcome)


@pytest.mark.parametrize("offered", [0, -1, 48, 96, 10**9])
def test_no_more_is_pulled_than_is_offered(offered: int) -> None:
    verdict = judged(a_read(offered_tokens=offered), [*TOKENS, 1])
    assert verdict.tokens == max(0, min(offered, 100))


@pytest.mark.parametrize(
    "blocks", [(), [], [[]], [list(range(6))], [list(range(7)), []], [list(range(7)), [1]]]
)
def test_lists_too_short_for_the_tokens_are_not_read(blocks: list[list[int]]) -> None:
    verdict = judged(a_read(offered_blocks=blocks), [*TOKENS, 1])
    assert verdict == Verdict(0, Outcome.DECLINED_MISMATCH, 100)


def test_judging_many_times_gives_the_same() -> None:
    read, chain = a_read(), Chain(CONTEXT)
    verdicts = [
        judge_backward(read, chain, [*TOKENS[:70], 255], local, trimmable=True)
        for local in (0, 32, 0, 64, 0)
    ]
    assert [verdict.tokens for verdict in verdicts] == [64, 64, 64, 0, 64]


@pytest.mark.parametrize("wanted", [1, 47, 48, 49, 100])
def test_scenario_30_a_forward_pull_needs_the_tip_of_all_that_is_wanted(wanted: int) -> None:
    tip = Tip(Chain(CONTEXT).tip(TOKENS, wanted), wanted)
    assert judge_forward(tip, Chain(CONTEXT), TOKENS, wanted) == Verdict(
        wanted, Outcome.PULLED, wanted
    )
    mismatch = Verdict(0, Outcome.DECLINED_MISMATCH)
    changed = [*TOKENS[: wanted - 1], 255, *TOKENS[wanted:]]
    assert judge_forward(tip, Chain(CONTEXT), changed, wanted) == mismatch
    assert judge_forward(tip, Chain(replace(CONTEXT, model="n")), TOKENS, wanted) == mismatch
    for other in (Tip(tip.digest, wanted + 1), Tip(tip.digest[:8], wanted), Tip(b"", wanted)):
        assert judge_forward(other, Chain(CONTEXT), TOKENS, wanted) == mismatch
    none = judge_forward(None, Chain(CONTEXT), TOKENS, wanted)
    assert none == Verdict(0, Outcome.DECLINED_NO_PROOF)


@pytest.mark.parametrize(("tokens", "kept"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (99, 7)])
def test_blocks_are_cut_to_the_tokens(tokens: int, kept: int) -> None:
    assert blocks_for(tokens, SIZE) == kept
    assert cut_blocks([range(7), (9,)], tokens, SIZE) == [
        list(range(kept)),
        [9][:kept],
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([[1, 2], [3]], [[1, 2], [3]]),
        (([1], ()), ([1], ())),
        ([], []),
        (None, ()),
        ("12", ()),
        ({"0": [1]}, ()),
        ([1, 2], ()),
        ([[1], None], ()),
        ([["1"]], ()),
        ([[1.0]], ()),
        ([[True]], ()),
        ([[-1]], ()),
    ],
)
def test_block_lists_are_lists_of_ids_or_nothing(value: object, expected: object) -> None:
    assert remote_blocks({"remote_block_ids": value}) == expected
    assert remote_blocks({}) == ()


def test_a_report_adds_up() -> None:
    read = a_read(verdict=Verdict(96, Outcome.PULLED, 96), pulled_tokens=64)
    read.transferred(1000, 4, 0.5)
    read.transferred(1000, 4, 0.25)
    assert read.report(130, 32) == Pull("PULLED", "d1", 100, 96, 32, 64, 34, 2000, 8, 0.5)
    read.fail()
    failed = read.report(130, 32)
    assert (failed.outcome, failed.pulled_tokens, failed.computed_tokens) == ("FAILED", 0, 98)
    assert failed.proven_tokens == 96
