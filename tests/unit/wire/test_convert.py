"""Domain values survive the wire; what this release does not know becomes None or INTERNAL."""

from __future__ import annotations

import math

import pytest
from google.protobuf.duration_pb2 import Duration

from contraflow.core.chain import Proof
from contraflow.core.errors import Internal, Reason, by_reason
from contraflow.core.fleet import Engine, Role, Session
from contraflow.core.handle import Claim, Handle, State
from contraflow.v1 import engine_pb2, errors_pb2, handle_pb2
from contraflow.wire import convert
from contraflow.wire.errors import error_of, reason_from_proto, reason_to_proto

ENGINE = Engine(
    engine_id="d-1",
    boot_nonce="nonce",
    role=Role.DECODE,
    endpoint="http://[fd00::1]:8000",
    agent_address="node:7000",
    dp_rank=3,
    served_models=("a", "b"),
    model="org/model",
    block_size=16,
    num_blocks=2**32 - 1,
    kv_dtype="auto",
    tp_size=8,
    vllm_version="0.33.0",
    connector_version=15,
    bidirectional=True,
    trimmable=False,
    draining=True,
    compatibility_class="c1",
)
HANDLE = Handle(
    handle_id="d-1/r",
    request_id="r",
    tenant="acme",
    session_key="0" * 32,
    num_tokens=2**40,
    num_blocks=7,
    proof=Proof(16, 20, bytes(8), bytes(16)),
    params={"secret": 1},
    deadline=130.0,
    retained_at=60.0,
    message_digest="ab",
    turn_id="t",
)


@pytest.mark.parametrize("engine", [ENGINE, Engine("e", "n", Role.PREFILL, "http://h")])
def test_an_engine_comes_back_equal(engine: Engine) -> None:
    assert convert.engine_from_proto(convert.engine_to_proto(engine)) == engine


@pytest.mark.parametrize("role", [0, 77])
def test_an_engine_of_an_unknown_role_is_none(role: int) -> None:
    message = convert.engine_to_proto(ENGINE)
    unknown = engine_pb2.Engine.FromString(message.SerializeToString() + _varint(message, role))
    assert unknown.role == role
    assert convert.engine_from_proto(unknown) is None


def _varint(message: engine_pb2.Engine, role: int) -> bytes:
    # A later occurrence of a field wins.
    return bytes([message.DESCRIPTOR.fields_by_name["role"].number << 3, role])


def test_a_session_keeps_its_age_and_what_is_left_of_its_life() -> None:
    session = Session("k", "d-1", "node:7000", "d-1/r", 300, 150.5, 80.0, "ab")
    moved = convert.session_from_proto(convert.session_to_proto(session, now=100.0), now=7.0)
    assert moved == Session("k", "d-1", "node:7000", "d-1/r", 300, 57.5, -13.0, "ab")


def test_a_handle_travels_without_parameters_and_proof() -> None:
    claimed = Handle(
        **{
            name: getattr(HANDLE, name)
            for name in HANDLE.__slots__
            if name not in ("state", "claim")
        },
        state=State.CLAIMED,
        claim=Claim("c-1", 110.0, 120.0),
    )
    message = convert.handle_to_proto(claimed, "d-1", now=100.0)
    assert message == handle_pb2.Handle(
        handle_id="d-1/r",
        engine_id="d-1",
        remote_request_id="r",
        tenant="acme",
        session_key="0" * 32,
        message_digest="ab",
        num_tokens=2**40,
        num_blocks=7,
        ttl=Duration(seconds=30),
        state=handle_pb2.HANDLE_STATE_CLAIMED,
        claim_id="c-1",
        turn_id="t",
        age=Duration(seconds=40),
    )
    assert convert.handle_to_proto(HANDLE, "d-1", now=200.0).ttl == Duration()


@pytest.mark.parametrize("state", State)
def test_every_state_has_a_number(state: State) -> None:
    number = handle_pb2.HandleState.Value(f"HANDLE_STATE_{state}")
    assert convert.state_from_proto(number) is state


@pytest.mark.parametrize("number", [0, 99, -1])
def test_an_unknown_state_is_none(number: int) -> None:
    assert convert.state_from_proto(number) is None


@pytest.mark.parametrize(
    ("span", "kept"),
    [
        (0.0, 0.0),
        (-5.0, 0.0),
        (-math.inf, 0.0),
        (math.nan, 0.0),
        (1e-9, 1e-9),
        (0.25, 0.25),
        (480.000000001, 480.000000001),
        (86_400 * 365, 86_400 * 365),
        (1e300, 315_576_000_000.0),
        (math.inf, 315_576_000_000.0),
    ],
)
def test_a_duration_is_never_negative_and_never_too_long(span: float, kept: float) -> None:
    message = convert.duration(span)
    assert message.ToJsonString().endswith("s")  # raises for what a Duration may not hold
    assert convert.seconds(message) == kept


@pytest.mark.parametrize(
    "proof",
    [Proof(16, 40, bytes(16), bytes(16), trimmable=False), Proof(1, 1, bytes(8), bytes(16))],
)
def test_a_proof_comes_back_equal(proof: Proof) -> None:
    assert convert.proof_from_proto(convert.proof_to_proto(proof)) == proof


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_number_and_a_type(reason: Reason) -> None:
    assert reason_from_proto(reason_to_proto(reason)) is reason
    error = error_of(reason, "why", field="x")
    assert type(error) is by_reason()[reason]
    assert (str(error), error.metadata) == ("why", {"field": "x"})


def test_every_number_has_a_reason() -> None:
    numbers = set(errors_pb2.ErrorReason.values()) - {0}
    assert {reason_from_proto(number) for number in numbers} == set(Reason)


@pytest.mark.parametrize("number", [0, 999])
def test_an_unknown_reason_is_internal(number: int) -> None:
    assert reason_from_proto(number) is Reason.INTERNAL
    assert isinstance(error_of(reason_from_proto(number), "?"), Internal)
