"""Reasons to and from ``contraflow.v1.ErrorReason``. Codes are the services' affair."""

from __future__ import annotations

from typing import cast

from contraflow.core.errors import ContraflowError, Internal, Reason, by_reason
from contraflow.v1 import errors_pb2

_PREFIX = "ERROR_REASON_"


def reason_to_proto(reason: Reason) -> errors_pb2.ErrorReason:
    """The enum value of a reason."""
    return cast("errors_pb2.ErrorReason", errors_pb2.ErrorReason.Value(_PREFIX + reason))


def reason_from_proto(number: int) -> Reason:
    """The reason; INTERNAL for values that this release does not know."""
    if number not in errors_pb2.ErrorReason.values():
        return Reason.INTERNAL
    name = errors_pb2.ErrorReason.Name(number).removeprefix(_PREFIX)
    return Reason(name) if name in Reason.__members__ else Reason.INTERNAL


def error_of(reason: Reason, message: str, **metadata: str) -> ContraflowError:
    """The domain error of a reason."""
    return by_reason().get(reason, Internal)(message, **metadata)
