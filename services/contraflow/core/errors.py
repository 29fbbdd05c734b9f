"""Domain errors. Each type carries one reason; reasons name what the caller should do.

The reasons are the values of ``contraflow.v1.ErrorReason`` without their prefix. The
status code of each reason is in ``contraflow.runtime.grpc_errors``, the only such table.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar


class Reason(StrEnum):
    """Why a call failed. Values equal the enum names of ``contraflow.v1.ErrorReason``."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    HANDLE_NOT_FOUND = "HANDLE_NOT_FOUND"
    HANDLE_CLAIMED = "HANDLE_CLAIMED"
    HANDLE_EXPIRED = "HANDLE_EXPIRED"
    LEASE_TOO_SHORT = "LEASE_TOO_SHORT"
    TENANT_MISMATCH = "TENANT_MISMATCH"
    ENGINE_INCARNATION_STALE = "ENGINE_INCARNATION_STALE"
    ENGINE_NOT_ATTACHED = "ENGINE_NOT_ATTACHED"
    LAYOUT_INCOMPATIBLE = "LAYOUT_INCOMPATIBLE"
    CLAIM_NOT_FOUND = "CLAIM_NOT_FOUND"
    REVISION_COMPACTED = "REVISION_COMPACTED"
    NOT_FOUND = "NOT_FOUND"
    REGISTRATION_NOT_FOUND = "REGISTRATION_NOT_FOUND"
    NO_ELIGIBLE_ENGINE = "NO_ELIGIBLE_ENGINE"
    STORE_UNAVAILABLE = "STORE_UNAVAILABLE"
    OVERLOADED = "OVERLOADED"
    ENGINE_UNRESPONSIVE = "ENGINE_UNRESPONSIVE"
    ENGINE_ID_REUSED = "ENGINE_ID_REUSED"
    INTERNAL = "INTERNAL"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    AMBIGUOUS_SESSION = "AMBIGUOUS_SESSION"
    ENGINE_FAILED = "ENGINE_FAILED"
    REGISTRATION_OUTDATED = "REGISTRATION_OUTDATED"


class ContraflowError(Exception):
    """Base of all domain errors. ``str(error)`` is for the caller: one sentence, no
    internals. ``metadata`` goes into ErrorInfo: short, never prompt text or token ids."""

    reason: ClassVar[Reason] = Reason.INTERNAL

    def __init__(self, message: str, **metadata: str) -> None:
        super().__init__(message)
        self.metadata = metadata


class InvalidArgument(ContraflowError):
    """The request is malformed; metadata ``field`` names the field."""

    reason = Reason.INVALID_ARGUMENT


class HandleNotFound(ContraflowError):
    """The owner holds no such handle."""

    reason = Reason.HANDLE_NOT_FOUND


class HandleClaimed(ContraflowError):
    """Another turn holds the one live claim."""

    reason = Reason.HANDLE_CLAIMED


class HandleExpired(ContraflowError):
    """The lease of the handle has run out."""

    reason = Reason.HANDLE_EXPIRED


class LeaseTooShort(ContraflowError):
    """What is left of the lease does not cover a claim and a read."""

    reason = Reason.LEASE_TOO_SHORT


class TenantMismatch(ContraflowError):
    """The handle belongs to another tenant."""

    reason = Reason.TENANT_MISMATCH


class EngineIncarnationStale(ContraflowError):
    """A later incarnation or link has taken over."""

    reason = Reason.ENGINE_INCARNATION_STALE


class EngineNotAttached(ContraflowError):
    """No live link to the engine."""

    reason = Reason.ENGINE_NOT_ATTACHED


class LayoutIncompatible(ContraflowError):
    """Reader and owner can not exchange blocks."""

    reason = Reason.LAYOUT_INCOMPATIBLE


class ClaimNotFound(ContraflowError):
    """The claim is unknown, lapsed or already ended."""

    reason = Reason.CLAIM_NOT_FOUND


class RevisionCompacted(ContraflowError):
    """The revision is compacted: watch again from a snapshot."""

    reason = Reason.REVISION_COMPACTED


class AmbiguousSession(ContraflowError):
    """Several handles fit and nothing tells which is meant."""

    reason = Reason.AMBIGUOUS_SESSION


class NotFound(ContraflowError):
    """No such record."""

    reason = Reason.NOT_FOUND


class RegistrationNotFound(ContraflowError):
    """The registration has lapsed: register again and publish everything."""

    reason = Reason.REGISTRATION_NOT_FOUND


class RegistrationOutdated(ContraflowError):
    """More has been told of the engine since; metadata ``sequence`` is the recorded one."""

    reason = Reason.REGISTRATION_OUTDATED


class NoEligibleEngine(ContraflowError):
    """No engine can serve the request."""

    reason = Reason.NO_ELIGIBLE_ENGINE


class StoreUnavailable(ContraflowError):
    """The store does not answer."""

    reason = Reason.STORE_UNAVAILABLE


class Overloaded(ContraflowError):
    """A limit is reached."""

    reason = Reason.OVERLOADED


class EngineUnresponsive(ContraflowError):
    """The engine did not answer in time."""

    reason = Reason.ENGINE_UNRESPONSIVE


class EngineIdReused(ContraflowError):
    """The engine id is alive with another boot nonce."""

    reason = Reason.ENGINE_ID_REUSED


class EngineFailed(ContraflowError):
    """The engine broke off, or answered with a failure of its own."""

    reason = Reason.ENGINE_FAILED


class Internal(ContraflowError):
    """A defect of the server."""

    reason = Reason.INTERNAL


class Unauthenticated(ContraflowError):
    """Credentials are missing or wrong."""

    reason = Reason.UNAUTHENTICATED


def by_reason() -> dict[Reason, type[ContraflowError]]:
    """The type of each reason; a test holds that every reason has exactly one."""
    return {cls.reason: cls for cls in ContraflowError.__subclasses__()}
