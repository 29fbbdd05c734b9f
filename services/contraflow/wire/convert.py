"""Domain values to and from ``contraflow.v1``. Durations travel, instants do not."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from contraflow.core.chain import Proof
from contraflow.core.fleet import Engine, Role, Session
from contraflow.core.handle import Handle, State
from contraflow.v1 import engine_pb2, handle_pb2, session_pb2

_ROLES = {
    Role.PREFILL: engine_pb2.ENGINE_ROLE_PREFILL,
    Role.DECODE: engine_pb2.ENGINE_ROLE_DECODE,
}
LONGEST_SECONDS = 315_576_000_000.0
"""What a Duration may hold."""
_ROLES_BACK = {number: role for role, number in _ROLES.items()}
_ENGINE_FIELDS = (
    "engine_id", "boot_nonce", "endpoint", "agent_address", "dp_rank", "model", "block_size",
    "num_blocks", "kv_dtype", "tp_size", "vllm_version", "connector_version", "bidirectional",
    "trimmable", "draining", "compatibility_class",
)  # fmt: skip


def duration(seconds: float) -> Duration:
    """A Duration; negative spans become zero, since a lease can not be less than over, and
    longer ones than a Duration may hold the longest."""
    nanos = round(min(max(0.0, seconds), LONGEST_SECONDS) * 1e9)
    return Duration(seconds=nanos // 10**9, nanos=nanos % 10**9)


def seconds(message: Duration) -> float:
    """A Duration in seconds."""
    return float(message.seconds + message.nanos / 1e9)


def engine_to_proto(engine: Engine) -> engine_pb2.Engine:
    """An engine as it travels."""
    fields = {name: getattr(engine, name) for name in _ENGINE_FIELDS}
    return engine_pb2.Engine(role=_ROLES[engine.role], served_models=engine.served_models, **fields)


def engine_from_proto(message: engine_pb2.Engine) -> Engine | None:
    """The engine, or None if its role is one that this release does not know."""
    role = _ROLES_BACK.get(message.role)
    if role is None:
        return None
    fields = {name: getattr(message, name) for name in _ENGINE_FIELDS}
    return Engine(role=role, served_models=tuple(message.served_models), **fields)


def session_to_proto(session: Session, now: float) -> session_pb2.Session:
    """A session as it travels; its instants become spans at ``now``."""
    return session_pb2.Session(
        session_key=session.session_key,
        engine_id=session.engine_id,
        agent_address=session.agent_address,
        handle_id=session.handle_id,
        num_tokens=session.num_tokens,
        message_digest=session.message_digest,
        branches=session.branches,
        ttl=duration(session.expires_at - now),
        age=duration(now - session.retained_at),
    )


def session_from_proto(message: session_pb2.Session, now: float) -> Session:
    """The session, its instants on the clock of ``now``."""
    return Session(
        session_key=message.session_key,
        engine_id=message.engine_id,
        agent_address=message.agent_address,
        handle_id=message.handle_id,
        num_tokens=message.num_tokens,
        message_digest=message.message_digest,
        branches=message.branches,
        expires_at=now + seconds(message.ttl),
        retained_at=now - seconds(message.age),
    )


def handle_to_proto(handle: Handle, engine_id: str, now: float) -> handle_pb2.Handle:
    """What is known of a handle outside its owner: neither parameters nor proof."""
    return handle_pb2.Handle(
        handle_id=handle.handle_id,
        engine_id=engine_id,
        remote_request_id=handle.request_id,
        tenant=handle.tenant,
        session_key=handle.session_key,
        message_digest=handle.message_digest,
        num_tokens=handle.num_tokens,
        num_blocks=handle.num_blocks,
        ttl=duration(handle.deadline - now),
        state=f"HANDLE_STATE_{handle.state}",
        claim_id=handle.claim.claim_id if handle.claim else "",
        turn_id=handle.turn_id,
        age=duration(now - handle.retained_at),
    )


def state_from_proto(number: int) -> State | None:
    """The state, or None if this release does not know it."""
    if number not in handle_pb2.HandleState.values():
        return None
    name = handle_pb2.HandleState.Name(number).removeprefix("HANDLE_STATE_")
    return State(name) if name in State.__members__ else None


def proof_to_proto(proof: Proof) -> handle_pb2.TokenProof:
    """A proof as it travels."""
    return handle_pb2.TokenProof(
        block_size=proof.block_size,
        num_tokens=proof.num_tokens,
        digests=proof.digests,
        tip=proof.tip,
        trimmable=proof.trimmable,
    )


def proof_from_proto(message: handle_pb2.TokenProof) -> Proof:
    """The proof; whether it is well-formed is for its reader to ask."""
    return Proof(
        block_size=message.block_size,
        num_tokens=message.num_tokens,
        digests=message.digests,
        tip=message.tip,
        trimmable=message.trimmable,
    )
