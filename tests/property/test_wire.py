"""Domain values come back from the wire as they were, whatever else a newer peer says."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from contraflow.core.chain import Proof
from contraflow.core.fleet import Engine, Role, Session
from contraflow.core.handle import Claim, Handle, State
from contraflow.v1 import engine_pb2, handle_pb2, session_pb2
from contraflow.wire.convert import (
    engine_from_proto,
    engine_to_proto,
    handle_to_proto,
    proof_from_proto,
    proof_to_proto,
    seconds,
    session_from_proto,
    session_to_proto,
    state_from_proto,
)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
small, large = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
spans = st.floats(0, 1e6)
instants = st.floats(0, 1e6)
# Fields that no release knows yet, of each wire type.
newer = st.lists(
    st.sampled_from(
        [b"\xc0\x3e\x07", b"\xc1\x3e" + bytes(8), b"\xc2\x3e\x02hi", b"\xc5\x3e" + bytes(4)]
    )
).map(b"".join)

engines = st.builds(
    Engine, engine_id=text, boot_nonce=text, role=st.sampled_from(Role), endpoint=text,
    agent_address=text, dp_rank=small, served_models=st.lists(text, max_size=3).map(tuple),
    model=text, block_size=small, num_blocks=small, kv_dtype=text, tp_size=small,
    vllm_version=text, connector_version=small, bidirectional=st.booleans(),
    trimmable=st.booleans(), draining=st.booleans(), compatibility_class=text,
)  # fmt: skip
proofs = st.builds(Proof, small, large, st.binary(max_size=40), st.binary(max_size=16),
                   st.booleans())  # fmt: skip


def close(one: float, other: float) -> bool:
    """To the nanosecond of the wire, and what doubles of this size can tell."""
    return abs(one - other) <= 1e-8


@given(engines, newer)
def test_engines(engine: Engine, more: bytes) -> None:
    wire = engine_to_proto(engine).SerializeToString() + more
    assert engine_from_proto(engine_pb2.Engine.FromString(wire)) == engine


@given(proofs, newer)
def test_proofs(proof: Proof, more: bytes) -> None:
    wire = proof_to_proto(proof).SerializeToString() + more
    assert proof_from_proto(handle_pb2.TokenProof.FromString(wire)) == proof


@given(text, text, large, small, instants, instants, spans, spans, newer)
def test_sessions_move_from_clock_to_clock(
    name: str, other: str, tokens: int, branches: int, here: float, there: float,
    ttl: float, age: float, more: bytes,
) -> None:  # fmt: skip
    sent = Session(name, other, name, other, tokens, here + ttl, here - age, name, branches)
    wire = session_to_proto(sent, here).SerializeToString() + more
    got = session_from_proto(session_pb2.Session.FromString(wire), there)
    assert got.says_the_same(sent)
    assert close(got.expires_at - there, sent.expires_at - here)
    assert close(there - got.retained_at, here - sent.retained_at)


@given(
    st.sampled_from(sorted(State)), text, large, small, instants, spans, spans, st.booleans(), newer
)
def test_handles(
    state: State, name: str, tokens: int, blocks: int, now: float, ttl: float, age: float,
    claimed: bool, more: bytes,
) -> None:  # fmt: skip
    handle = Handle(
        f"e/{name}", name, name, name, tokens, blocks, Proof(1, 1, b"", b""), {}, now + ttl,
        now - age, name, name, state,
    )  # fmt: skip
    if claimed:
        handle = replace(handle, claim=Claim(name, now, now))
    wire = handle_to_proto(handle, "e", now).SerializeToString() + more
    got = handle_pb2.Handle.FromString(wire)
    assert state_from_proto(got.state) is state
    assert (got.handle_id, got.engine_id, got.remote_request_id) == (f"e/{name}", "e", name)
    assert (got.tenant, got.session_key, got.message_digest, got.turn_id) == (name,) * 4
    assert (got.num_tokens, got.num_blocks) == (tokens, blocks)
    assert got.claim_id == (name if claimed else "")
    assert close(seconds(got.ttl), handle.deadline - now)
    assert close(seconds(got.age), now - handle.retained_at)
