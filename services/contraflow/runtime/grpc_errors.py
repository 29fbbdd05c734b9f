"""Domain errors to gRPC and back. ``STATUS_CODES`` is the only table of its kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2

from contraflow.core.errors import ContraflowError, Internal, Reason
from contraflow.v1 import errors_pb2
from contraflow.wire.convert import duration, seconds
from contraflow.wire.errors import error_of, reason_from_proto, reason_to_proto

DOMAIN = "contraflow"
DETAILS_KEY = "grpc-status-details-bin"
RETRY_AFTER = "retry_after_seconds"
"""Metadata key of an Overloaded: seconds as text; travels as RetryInfo."""

_DEFAULT_RETRY_SECONDS = 1.0
_MAX_MESSAGE = 512
_MAX_METADATA = 256

STATUS_CODES: dict[Reason, grpc.StatusCode] = {
    Reason.INVALID_ARGUMENT: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.HANDLE_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.HANDLE_CLAIMED: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.HANDLE_EXPIRED: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.LEASE_TOO_SHORT: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.TENANT_MISMATCH: grpc.StatusCode.PERMISSION_DENIED,
    Reason.ENGINE_INCARNATION_STALE: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.ENGINE_NOT_ATTACHED: grpc.StatusCode.NOT_FOUND,
    Reason.LAYOUT_INCOMPATIBLE: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.CLAIM_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.REVISION_COMPACTED: grpc.StatusCode.OUT_OF_RANGE,
    Reason.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.REGISTRATION_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.NO_ELIGIBLE_ENGINE: grpc.StatusCode.UNAVAILABLE,
    Reason.STORE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Reason.OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.ENGINE_UNRESPONSIVE: grpc.StatusCode.DEADLINE_EXCEEDED,
    Reason.ENGINE_ID_REUSED: grpc.StatusCode.ALREADY_EXISTS,
    Reason.INTERNAL: grpc.StatusCode.INTERNAL,
    Reason.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    Reason.AMBIGUOUS_SESSION: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.ENGINE_FAILED: grpc.StatusCode.UNAVAILABLE,
    Reason.REGISTRATION_OUTDATED: grpc.StatusCode.FAILED_PRECONDITION,
}


class CallFailed(Internal):
    """A call ended without an answer of the peer's domain. ``code`` is its status.

    Only clients meet it; a server that lets it escape has a defect, hence INTERNAL.
    """

    def __init__(self, message: str, code: grpc.StatusCode) -> None:
        super().__init__(message)
        self.code = code


class Unreachable(CallFailed):
    """Nobody answers at the address, or the connection broke. Back off, or try the next."""


class TimedOut(CallFailed):
    """The caller's own deadline passed."""


def to_status(error: ContraflowError) -> status_pb2.Status:
    """The status of an error with its details: ErrorInfo, and RetryInfo if OVERLOADED.

    Texts are cut: a status travels in a header, and a peer drops those above 8 KiB.
    """
    status = status_pb2.Status(code=_number(error.reason), message=str(error)[:_MAX_MESSAGE])
    metadata = {name: value[:_MAX_METADATA] for name, value in error.metadata.items()}
    status.details.append(_any(error_details_pb2.ErrorInfo(
        reason=error.reason, domain=DOMAIN, metadata=metadata
    )))  # fmt: skip
    if error.reason is Reason.OVERLOADED:
        delay = float(error.metadata.get(RETRY_AFTER, _DEFAULT_RETRY_SECONDS))
        status.details.append(_any(error_details_pb2.RetryInfo(retry_delay=duration(delay))))
    return status


def from_rpc_error(error: grpc.aio.AioRpcError) -> ContraflowError:
    """What a failed call means: the domain error that the peer raised, or CallFailed."""
    message = error.details() or error.code().name
    details = _details(error)
    info = error_details_pb2.ErrorInfo()
    if not (details and _find(details, info) and info.domain == DOMAIN):
        return _without_reason(message, error.code())
    metadata = dict(info.metadata)
    retry = error_details_pb2.RetryInfo()
    if _find(details, retry):
        metadata[RETRY_AFTER] = f"{seconds(retry.retry_delay):g}"
    reason = Reason(info.reason) if info.reason in Reason.__members__ else Reason.INTERNAL
    return error_of(reason, message, **metadata)


@contextmanager
def domain_errors() -> Iterator[None]:
    """Turns AioRpcError into what ``from_rpc_error`` makes of it."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error


def item_status(error: ContraflowError | None = None) -> errors_pb2.ItemStatus:
    """The status of one item of a batch; success without an error."""
    if error is None:
        return errors_pb2.ItemStatus()
    return errors_pb2.ItemStatus(
        code=_number(error.reason), reason=reason_to_proto(error.reason), message=str(error)
    )


def from_item_status(status: errors_pb2.ItemStatus) -> ContraflowError | None:
    """The error of one item of a batch, or None for success."""
    if status.code == 0:
        return None
    return error_of(reason_from_proto(status.reason), status.message)


def _number(reason: Reason) -> int:
    return int(STATUS_CODES[reason].value[0])


def _any(message: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed


def _details(error: grpc.aio.AioRpcError) -> status_pb2.Status | None:
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            return status_pb2.Status.FromString(value)
    return None


def _find(
    status: status_pb2.Status, into: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo
) -> bool:
    return any(detail.Unpack(into) for detail in status.details if detail.Is(into.DESCRIPTOR))


def _without_reason(message: str, code: grpc.StatusCode) -> CallFailed:
    if code is grpc.StatusCode.UNAVAILABLE:
        return Unreachable(message, code)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return TimedOut(message, code)
    return CallFailed(message, code)
