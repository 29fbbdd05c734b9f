"""What router and connectors tell each other: nothing in it can raise, and all of it returns."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from contraflow.core.chain import Proof
from contraflow.core.instructions import Instructions, Pull, Tip, proof_from_json, proof_to_json
from contraflow.core.plan import Decision

text = st.text(max_size=8)
base64ish = st.text("Aa0+/=", max_size=24)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | text | base64ish | st.binary()
KEYS = [
    *Instructions.__slots__, *Pull.__slots__, *Proof.__slots__, "digest", "tip", "num_tokens",
]  # fmt: skip
garbage = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(text | st.sampled_from(KEYS), inner)
    ),
    max_leaves=20,
)
sizes = st.integers(1, 2**32 - 1)


@st.composite
def proofs(draw: st.DrawFn) -> Proof:
    size, blocks = draw(st.integers(1, 64)), draw(st.integers(0, 5))
    tokens = size * blocks + draw(st.integers(0 if blocks else 1, max(1, size - 1)))
    blocks = tokens // size
    digests = draw(st.binary(min_size=8 * blocks, max_size=8 * blocks))
    tip = draw(st.binary(min_size=16, max_size=16))
    return Proof(size, tokens, digests, tip, draw(st.booleans()))


instructions = st.builds(
    Instructions,
    tenant=text,
    session_key=text,
    turn_id=text,
    claim_id=text,
    decision=text | st.sampled_from(Decision),
    message_digest=text,
    min_pull_tokens=sizes,
    pull_blocks=st.none() | st.integers(0, 2**32 - 1),
    proof=st.none() | proofs(),
)
counts = st.integers(0, 2**63)
spans = st.floats(0, 1e9)
pulls = st.builds(
    Pull,
    outcome=text,
    remote_engine_id=text,
    offered_tokens=counts,
    proven_tokens=counts,
    local_tokens=counts,
    pulled_tokens=counts,
    computed_tokens=counts,
    bytes=counts,
    descriptors=counts,
    transfer_seconds=spans,
    wall_seconds=spans,
)


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


@given(instructions)
def test_instructions_come_back_equal(sent: Instructions) -> None:
    assert Instructions.from_json(through_json(sent.to_json())) == sent


@given(st.builds(Tip, st.binary(max_size=20), st.integers()))
def test_tips_come_back_equal(sent: Tip) -> None:
    assert Tip.from_json(through_json(sent.to_json())) == sent


@given(pulls)
def test_reports_come_back_equal(sent: Pull) -> None:
    assert Pull.from_json(through_json(sent.to_json())) == sent


@given(garbage)
def test_garbage_never_raises_and_leaves_only_what_is_typed(value: object) -> None:
    told = Instructions.from_json(value)
    assert told == Instructions.from_json(through_json(told.to_json()))
    Tip.from_json(value)
    proof = proof_from_json(value)
    assert proof is None or proof.is_well_formed()
    if (pull := Pull.from_json(value)) is not None:
        assert Pull.from_json(through_json(pull.to_json())) == pull


@given(instructions, st.sampled_from(Instructions.__slots__), garbage)
def test_one_spoiled_key_does_not_spoil_the_others(
    sent: Instructions, key: str, value: object
) -> None:
    told = Instructions.from_json({**sent.to_json(), key: value})
    for name in Instructions.__slots__:
        if name != key:
            assert getattr(told, name) == getattr(sent, name)


@given(proofs(), st.sampled_from(Proof.__slots__), garbage)
def test_a_spoiled_proof_is_none_or_well_formed(proof: Proof, key: str, value: object) -> None:
    read = proof_from_json({**proof_to_json(proof), key: value})
    assert read is None or read.is_well_formed()


def test_a_report_with_a_name_of_any_length_is_none() -> None:
    report = Pull("x" * 512, "d" * 512)
    assert Pull.from_json(report.to_json()) == report
    assert Pull.from_json({**report.to_json(), "outcome": "x" * 513}) is None
    told = Pull.from_json({**report.to_json(), "remote_engine_id": "d" * 513})
    assert told == Pull("x" * 512)
