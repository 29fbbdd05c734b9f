"""The chain against the naive one, on generated tokens and contexts."""

from __future__ import annotations

from dataclasses import replace

import tests.support.chain_reference as naive
from hypothesis import assume, given
from hypothesis import strategies as st

from contraflow.core.chain import Chain, Context, Item, Proof

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
items = st.builds(Item, names, st.integers(0, 40), st.integers(1, 30))
contexts = st.builds(
    Context,
    model=names,
    block_size=st.sampled_from([1, 2, 3, 16]),
    lora_name=names,
    cache_salt=names,
    # At one position there is one item.
    items=st.lists(items, max_size=3, unique_by=lambda item: item.offset).map(tuple),
)
token_ids = st.one_of(st.integers(0, 3), st.integers(0, 2**32 - 1))
token_lists = st.lists(token_ids, max_size=60)
prompts = st.lists(token_ids, min_size=1, max_size=60)


@st.composite
def related(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Tokens of a handle and a prompt that often begins alike."""
    tokens = draw(prompts)
    common = draw(st.integers(0, len(tokens)))
    return tokens, tokens[:common] + draw(token_lists)


def proof_of(context: Context, tokens: list[int], *, trimmable: bool = True) -> Proof:
    return Proof(
        context.block_size,
        len(tokens),
        naive.digests(context, tokens),
        naive.tip(context, tokens),
        trimmable,
    )


def naively_proven(size: int, proven: list[int], prompt: list[int], *, trimmable: bool) -> int:
    if prompt[: len(proven)] == proven:
        return len(proven)
    if not trimmable:
        return 0
    common = next(i for i in range(len(proven)) if i == len(prompt) or proven[i] != prompt[i])
    return common // size * size


@given(contexts, prompts)
def test_it_is_the_chain_of_the_proto(context: Context, tokens: list[int]) -> None:
    assert Chain(context).proof(tokens, len(tokens)) == proof_of(context, tokens)


@given(contexts, related(), st.booleans())
def test_proven_is_the_longest_common_prefix(
    context: Context, pair: tuple[list[int], list[int]], trimmable: bool
) -> None:
    tokens, prompt = pair
    proof = proof_of(context, tokens, trimmable=trimmable)
    expected = naively_proven(context.block_size, tokens, prompt, trimmable=trimmable)
    assert Chain(context).proven(proof, prompt) == expected


@given(contexts, prompts, st.lists(st.integers(0, 60), max_size=5))
def test_growing_step_by_step_changes_nothing(
    context: Context, tokens: list[int], steps: list[int]
) -> None:
    grown = Chain(context)
    for step in sorted(steps):
        grown.extend(tokens[:step])
    assert grown.proof(tokens, len(tokens)) == Chain(context).proof(tokens, len(tokens))


@given(contexts, prompts, st.data())
def test_a_chain_that_is_longer_still_knows_its_prefixes(
    context: Context, tokens: list[int], data: st.DataObject
) -> None:
    length = data.draw(st.integers(1, len(tokens)))
    chain = Chain(context)
    chain.extend(tokens)
    assert chain.proof(tokens, length) == proof_of(context, tokens[:length])


@given(contexts, contexts, prompts)
def test_scenario_22_another_context_never_matches(
    one: Context, two: Context, tokens: list[int]
) -> None:
    assume(replace(one, items=()) != replace(two, items=()))
    assert Chain(two).proven(proof_of(one, tokens), tokens) == 0


@given(contexts, items, items, st.lists(token_ids, min_size=41, max_size=60))
def test_scenario_22_another_item_proves_nothing_from_its_block_on(
    context: Context, one: Item, two: Item, tokens: list[int]
) -> None:
    assume((one.identifier, one.offset) != (two.identifier, two.offset))
    size = context.block_size
    proof = proof_of(replace(context, items=(one,)), tokens)
    first = min(one.offset, two.offset)
    proven = Chain(replace(context, items=(two,))).proven(proof, tokens)
    assert proven == first // size * size


@given(
    contexts,
    token_lists,
    st.builds(
        Proof,
        block_size=st.integers(-1, 17) | st.integers(),
        num_tokens=st.integers(-1, 60) | st.integers(),
        digests=st.binary(max_size=40),
        tip=st.binary(max_size=17),
        trimmable=st.booleans(),
    ),
)
def test_an_invented_proof_proves_nothing(
    context: Context, tokens: list[int], proof: Proof
) -> None:
    assert Chain(context).proven(proof, tokens) == 0
