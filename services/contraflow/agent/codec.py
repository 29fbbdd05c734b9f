"""Messages of the agent's two services to and from plain values, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from contraflow.agent.mirror import MirroredHandle
from contraflow.core.errors import ContraflowError, Internal, InvalidArgument
from contraflow.core.fleet import Engine, is_endpoint
from contraflow.core.handle import ClaimRequest
from contraflow.core.session import is_session_key
from contraflow.v1 import agent_service_pb2 as agent_pb
from contraflow.v1 import engine_link_service_pb2 as link_pb
from contraflow.v1 import handle_pb2, transfer_params_pb2
from contraflow.wire.convert import duration, engine_from_proto, seconds, state_from_proto
from contraflow.wire.errors import error_of, reason_from_proto

MAX_ID_LENGTH = 1024
"""Characters of an id in a request."""


@dataclass(frozen=True, slots=True)
class Introduction:
    """A Hello: an engine and its whole handle table, oldest first."""

    engine: Engine
    handles: list[MirroredHandle]


@dataclass(frozen=True, slots=True)
class Granted:
    """A claim. Parameters and proof pass as the engine gave them; spans in seconds from now."""

    handle: MirroredHandle
    params: transfer_params_pb2.TransferParams = field(repr=False)
    proof: handle_pb2.TokenProof = field(repr=False)
    start_by: float
    hold_until: float


def introduction(message: link_pb.AttachRequest | None, now: float) -> Introduction:
    """The first message of a link. Raises InvalidArgument."""
    if message is None or message.WhichOneof("message") != "hello":
        raise InvalidArgument("the first message must be Hello", field="hello")
    hello = message.hello
    engine = engine_from_proto(hello.engine)
    if engine is None:
        raise InvalidArgument("the role must be prefill or decode", field="hello.engine.role")
    require_id(engine.engine_id, "hello.engine.engine_id")
    if "/" in engine.engine_id:
        raise InvalidArgument("an engine id has no slash", field="hello.engine.engine_id")
    require_id(engine.boot_nonce, "hello.engine.boot_nonce")
    if not is_endpoint(engine.endpoint):
        raise InvalidArgument(
            "the endpoint must be http://host:port", field="hello.engine.endpoint"
        )
    return Introduction(engine, _handles(hello.handles, engine.engine_id, now))


def handle_from_proto(message: handle_pb2.Handle, now: float) -> MirroredHandle | None:
    """A handle, its instants on the clock of ``now``; None if its state is not known here."""
    state = state_from_proto(message.state)
    if state is None or not message.handle_id:
        return None
    return MirroredHandle(
        handle_id=message.handle_id,
        engine_id=message.engine_id,
        request_id=message.remote_request_id,
        tenant=message.tenant,
        session_key=message.session_key,
        num_tokens=message.num_tokens,
        num_blocks=message.num_blocks,
        expires_at=now + seconds(message.ttl),
        retained_at=now - seconds(message.age),
        state=state,
        message_digest=message.message_digest,
        turn_id=message.turn_id,
        claim_id=message.claim_id,
    )


def grant_from_proto(grant: link_pb.Grant, sent_at: float, now: float) -> Granted:
    """What an engine granted to an order that was sent at ``sent_at``. Raises Internal."""
    handle = handle_from_proto(grant.handle, now)
    if handle is None:
        raise Internal("the engine's grant names no handle")
    # The engine said what is left after it had heard the order: counted from before, the spans
    # never reach beyond its own.
    waited = now - sent_at
    return Granted(
        handle,
        grant.transfer_params,
        grant.proof,
        start_by=seconds(grant.start_by) - waited,
        hold_until=seconds(grant.hold_until) - waited,
    )


def handle_to_proto(handle: MirroredHandle, now: float) -> handle_pb2.Handle:
    """A handle as it travels; its instants become spans at ``now``."""
    return handle_pb2.Handle(
        handle_id=handle.handle_id,
        engine_id=handle.engine_id,
        remote_request_id=handle.request_id,
        tenant=handle.tenant,
        session_key=handle.session_key,
        message_digest=handle.message_digest,
        num_tokens=handle.num_tokens,
        num_blocks=handle.num_blocks,
        ttl=duration(handle.expires_at - now),
        state=f"HANDLE_STATE_{handle.state}",
        claim_id=handle.claim_id,
        turn_id=handle.turn_id,
        age=duration(now - handle.retained_at),
    )


def claim_request(
    request: agent_pb.AcquireHandleRequest, start_by: float, max_read: float
) -> ClaimRequest:
    """What a router asks for; the defaults are spans in seconds. Raises InvalidArgument."""
    require_id(request.claim_id, "claim_id")
    require_id(request.tenant, "tenant")
    require_id(request.engine_id, "engine_id")
    if not is_session_key(request.session_key):
        raise InvalidArgument("a session key has 32 hex digits", field="session_key")
    if len(request.message_digests) > MAX_DIGESTS:
        raise InvalidArgument(f"at most {MAX_DIGESTS} digests", field="message_digests")
    if any(len(digest) > MAX_ID_LENGTH for digest in request.message_digests):
        raise InvalidArgument("a digest is too long", field="message_digests")
    if len(request.hint_handle_id) > MAX_ID_LENGTH:
        raise InvalidArgument("the handle id is too long", field="hint_handle_id")
    if len(request.produced_by_turn_id) > MAX_ID_LENGTH:
        raise InvalidArgument("the turn id is too long", field="produced_by_turn_id")
    if request.HasField("start_by"):
        start_by = seconds(request.start_by)
        if start_by <= 0:
            raise InvalidArgument("start_by must be positive", field="start_by")
    return ClaimRequest(
        claim_id=request.claim_id,
        tenant=request.tenant,
        session_key=request.session_key,
        start_by=start_by,
        max_read=max_read,
        message_digests=tuple(request.message_digests),
        hint_handle_id=request.hint_handle_id,
        produced_by_turn_id=request.produced_by_turn_id,
    )


def acquire_order(call_id: int, request: ClaimRequest) -> link_pb.AttachResponse:
    """An Acquire for the engine."""
    return link_pb.AttachResponse(
        acquire=link_pb.Acquire(
            call_id=call_id,
            claim_id=request.claim_id,
            tenant=request.tenant,
            session_key=request.session_key,
            message_digests=request.message_digests,
            hint_handle_id=request.hint_handle_id,
            produced_by_turn_id=request.produced_by_turn_id,
            start_by=duration(request.start_by),
            max_read=duration(request.max_read),
        )
    )


def return_order(call_id: int, claim_id: str) -> link_pb.AttachResponse:
    """A ReturnOrder for the engine."""
    return link_pb.AttachResponse(
        return_order=link_pb.ReturnOrder(call_id=call_id, claim_id=claim_id)
    )


def release_order(call_id: int, handle_ids: Iterable[str]) -> link_pb.AttachResponse:
    """A Release for the engine."""
    return link_pb.AttachResponse(release=link_pb.Release(call_id=call_id, handle_ids=handle_ids))


def renew_order(call_id: int, handle_ids: Iterable[str], ttl: float) -> link_pb.AttachResponse:
    """A Renew for the engine; ``ttl`` in seconds."""
    return link_pb.AttachResponse(
        renew=link_pb.Renew(call_id=call_id, handle_ids=handle_ids, ttl=duration(ttl))
    )


def denial_error(denial: link_pb.Denial) -> ContraflowError:
    """The domain error of a denial; Internal for reasons that this release does not know."""
    return error_of(reason_from_proto(denial.reason), denial.message or "denied by the engine")


def require_id(value: str, name: str) -> None:
    """Raises InvalidArgument unless ``value`` has 1 to MAX_ID_LENGTH characters."""
    if not value:
        raise InvalidArgument(f"{name} is missing", field=name)
    if len(value) > MAX_ID_LENGTH:
        raise InvalidArgument(f"{name} is longer than {MAX_ID_LENGTH} characters", field=name)


def require_handle_id(value: str, name: str) -> None:
    """Raises InvalidArgument unless ``value`` is "<engine id>/<request id>"."""
    require_id(value, name)
    engine_id, _, request_id = value.partition("/")
    if not (engine_id and request_id):
        raise InvalidArgument("a handle id is '<engine id>/<request id>'", field=name)


def _handles(
    messages: Iterable[handle_pb2.Handle], engine_id: str, now: float
) -> list[MirroredHandle]:
    handles = (handle_from_proto(message, now) for message in messages)
    return [handle for handle in handles if handle and handle.engine_id == engine_id]


MAX_DIGESTS = 16
"""In one acquire."""
