from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_ARGUMENT: _ClassVar[ErrorReason]
    ERROR_REASON_HANDLE_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_HANDLE_CLAIMED: _ClassVar[ErrorReason]
    ERROR_REASON_HANDLE_EXPIRED: _ClassVar[ErrorReason]
    ERROR_REASON_LEASE_TOO_SHORT: _ClassVar[ErrorReason]
    ERROR_REASON_TENANT_MISMATCH: _ClassVar[ErrorReason]
    ERROR_REASON_ENGINE_INCARNATION_STALE: _ClassVar[ErrorReason]
    ERROR_REASON_ENGINE_NOT_ATTACHED: _ClassVar[ErrorReason]
    ERROR_REASON_LAYOUT_INCOMPATIBLE: _ClassVar[ErrorReason]
    ERROR_REASON_CLAIM_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_REVISION_COMPACTED: _ClassVar[ErrorReason]
    ERROR_REASON_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_REGISTRATION_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_NO_ELIGIBLE_ENGINE: _ClassVar[ErrorReason]
    ERROR_REASON_STORE_UNAVAILABLE: _ClassVar[ErrorReason]
    ERROR_REASON_OVERLOADED: _ClassVar[ErrorReason]
    ERROR_REASON_ENGINE_UNRESPONSIVE: _ClassVar[ErrorReason]
    ERROR_REASON_ENGINE_ID_REUSED: _ClassVar[ErrorReason]
    ERROR_REASON_INTERNAL: _ClassVar[ErrorReason]
    ERROR_REASON_UNAUTHENTICATED: _ClassVar[ErrorReason]
    ERROR_REASON_AMBIGUOUS_SESSION: _ClassVar[ErrorReason]
    ERROR_REASON_ENGINE_FAILED: _ClassVar[ErrorReason]
    ERROR_REASON_REGISTRATION_OUTDATED: _ClassVar[ErrorReason]
ERROR_REASON_UNSPECIFIED: ErrorReason
ERROR_REASON_INVALID_ARGUMENT: ErrorReason
ERROR_REASON_HANDLE_NOT_FOUND: ErrorReason
ERROR_REASON_HANDLE_CLAIMED: ErrorReason
ERROR_REASON_HANDLE_EXPIRED: ErrorReason
ERROR_REASON_LEASE_TOO_SHORT: ErrorReason
ERROR_REASON_TENANT_MISMATCH: ErrorReason
ERROR_REASON_ENGINE_INCARNATION_STALE: ErrorReason
ERROR_REASON_ENGINE_NOT_ATTACHED: ErrorReason
ERROR_REASON_LAYOUT_INCOMPATIBLE: ErrorReason
ERROR_REASON_CLAIM_NOT_FOUND: ErrorReason
ERROR_REASON_REVISION_COMPACTED: ErrorReason
ERROR_REASON_NOT_FOUND: ErrorReason
ERROR_REASON_REGISTRATION_NOT_FOUND: ErrorReason
ERROR_REASON_NO_ELIGIBLE_ENGINE: ErrorReason
ERROR_REASON_STORE_UNAVAILABLE: ErrorReason
ERROR_REASON_OVERLOADED: ErrorReason
ERROR_REASON_ENGINE_UNRESPONSIVE: ErrorReason
ERROR_REASON_ENGINE_ID_REUSED: ErrorReason
ERROR_REASON_INTERNAL: ErrorReason
ERROR_REASON_UNAUTHENTICATED: ErrorReason
ERROR_REASON_AMBIGUOUS_SESSION: ErrorReason
ERROR_REASON_ENGINE_FAILED: ErrorReason
ERROR_REASON_REGISTRATION_OUTDATED: ErrorReason

class ItemStatus(_message.Message):
    __slots__ = ("code", "reason", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: ErrorReason
    message: str
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[_Union[ErrorReason, str]] = ..., message: _Optional[str] = ...) -> None: ...
