"""The content chain: its golden vectors, and what a proof proves."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.support import chain_reference

from contraflow.core.chain import Chain, Context, Item, Proof

GOLDEN: list[dict[str, Any]] = json.loads(chain_reference.VECTORS.read_text(encoding="utf-8"))
TOKENS = list(range(100, 150))


def context_of(vector: dict[str, Any]) -> Context:
    fields = dict(vector["context"])
    return Context(**{**fields, "items": tuple(Item(**item) for item in fields["items"])})


def test_the_golden_vectors_are_what_the_comment_of_the_proto_says() -> None:
    assert chain_reference.VECTORS.read_text(encoding="utf-8") == chain_reference.rendered()


@pytest.mark.parametrize("vector", GOLDEN, ids=lambda vector: str(vector["name"]))
def test_the_chain_equals_the_golden_vectors(vector: dict[str, Any]) -> None:
    context, tokens = context_of(vector), vector["tokens"]
    proof = Chain(context).proof(tokens, len(tokens))
    assert context.root().hex() == vector["root"]
    assert proof.digests.hex() == vector["digests"]
    assert proof.tip.hex() == vector["tip"]
    assert proof.is_well_formed()
    assert Chain(context).proven(proof, tokens) == len(tokens)


def test_the_golden_vectors_all_differ() -> None:
    tips = [vector["tip"] for vector in GOLDEN]
    assert len(set(tips)) == len(tips)


@pytest.mark.parametrize(
    ("prompt", "proven"),
    [
        (TOKENS[:40], 40),
        (TOKENS, 40),
        (TOKENS[:39], 32),
        ([*TOKENS[:39], 7, *TOKENS[40:]], 32),
        ([7, *TOKENS[1:]], 0),
        ([], 0),
    ],
)
def test_whole_blocks_are_proven_and_the_rest_only_as_a_whole(
    prompt: list[int], proven: int
) -> None:
    proof = Chain(Context("m", 16)).proof(TOKENS, 40)
    assert Chain(Context("m", 16)).proven(proof, prompt) == proven
    whole = replace(proof, trimmable=False)
    assert Chain(Context("m", 16)).proven(whole, prompt) == (40 if proven == 40 else 0)


GOOD = Chain(Context("m", 16)).proof(TOKENS, 40)


@pytest.mark.parametrize(
    "proof",
    [
        replace(GOOD, block_size=0),
        replace(GOOD, block_size=-16),
        replace(GOOD, block_size=8),
        replace(GOOD, block_size=32, digests=GOOD.digests[:8]),
        replace(GOOD, num_tokens=0),
        replace(GOOD, num_tokens=-1),
        replace(GOOD, num_tokens=48),
        replace(GOOD, num_tokens=2**64),
        replace(GOOD, digests=b""),
        replace(GOOD, digests=GOOD.digests[:-1]),
        replace(GOOD, digests=GOOD.digests + bytes(8)),
        replace(GOOD, tip=b""),
        replace(GOOD, tip=GOOD.tip + b"\0"),
        Proof(16, 0, b"", b""),
    ],
)
def test_a_malformed_proof_proves_nothing(proof: Proof) -> None:
    assert Chain(Context("m", 16)).proven(proof, TOKENS) == 0
