import datetime

from contraflow.v1 import engine_pb2 as _engine_pb2
from contraflow.v1 import errors_pb2 as _errors_pb2
from contraflow.v1 import handle_pb2 as _handle_pb2
from contraflow.v1 import transfer_params_pb2 as _transfer_params_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AttachRequest(_message.Message):
    __slots__ = ("hello", "handle_update", "acquire_result", "return_result", "release_result", "pull_report", "renew_result")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HANDLE_UPDATE_FIELD_NUMBER: _ClassVar[int]
    ACQUIRE_RESULT_FIELD_NUMBER: _ClassVar[int]
    RETURN_RESULT_FIELD_NUMBER: _ClassVar[int]
    RELEASE_RESULT_FIELD_NUMBER: _ClassVar[int]
    PULL_REPORT_FIELD_NUMBER: _ClassVar[int]
    RENEW_RESULT_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    handle_update: HandleUpdate
    acquire_result: AcquireResult
    return_result: ReturnResult
    release_result: ReleaseResult
    pull_report: _handle_pb2.PullReport
    renew_result: RenewResult
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., handle_update: _Optional[_Union[HandleUpdate, _Mapping]] = ..., acquire_result: _Optional[_Union[AcquireResult, _Mapping]] = ..., return_result: _Optional[_Union[ReturnResult, _Mapping]] = ..., release_result: _Optional[_Union[ReleaseResult, _Mapping]] = ..., pull_report: _Optional[_Union[_handle_pb2.PullReport, _Mapping]] = ..., renew_result: _Optional[_Union[RenewResult, _Mapping]] = ...) -> None: ...

class AttachResponse(_message.Message):
    __slots__ = ("welcome", "acquire", "return_order", "release", "renew")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ACQUIRE_FIELD_NUMBER: _ClassVar[int]
    RETURN_ORDER_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    acquire: Acquire
    return_order: ReturnOrder
    release: Release
    renew: Renew
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., acquire: _Optional[_Union[Acquire, _Mapping]] = ..., return_order: _Optional[_Union[ReturnOrder, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., renew: _Optional[_Union[Renew, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("engine", "handles")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    engine: _engine_pb2.Engine
    handles: _containers.RepeatedCompositeFieldContainer[_handle_pb2.Handle]
    def __init__(self, engine: _Optional[_Union[_engine_pb2.Engine, _Mapping]] = ..., handles: _Optional[_Iterable[_Union[_handle_pb2.Handle, _Mapping]]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("attach_epoch",)
    ATTACH_EPOCH_FIELD_NUMBER: _ClassVar[int]
    attach_epoch: int
    def __init__(self, attach_epoch: _Optional[int] = ...) -> None: ...

class HandleUpdate(_message.Message):
    __slots__ = ("handle",)
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    handle: _handle_pb2.Handle
    def __init__(self, handle: _Optional[_Union[_handle_pb2.Handle, _Mapping]] = ...) -> None: ...

class Acquire(_message.Message):
    __slots__ = ("call_id", "claim_id", "tenant", "session_key", "message_digests", "hint_handle_id", "start_by", "max_read", "produced_by_turn_id")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    CLAIM_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SESSION_KEY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    HINT_HANDLE_ID_FIELD_NUMBER: _ClassVar[int]
    START_BY_FIELD_NUMBER: _ClassVar[int]
    MAX_READ_FIELD_NUMBER: _ClassVar[int]
    PRODUCED_BY_TURN_ID_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    claim_id: str
    tenant: str
    session_key: str
    message_digests: _containers.RepeatedScalarFieldContainer[str]
    hint_handle_id: str
    start_by: _duration_pb2.Duration
    max_read: _duration_pb2.Duration
    produced_by_turn_id: str
    def __init__(self, call_id: _Optional[int] = ..., claim_id: _Optional[str] = ..., tenant: _Optional[str] = ..., session_key: _Optional[str] = ..., message_digests: _Optional[_Iterable[str]] = ..., hint_handle_id: _Optional[str] = ..., start_by: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., max_read: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., produced_by_turn_id: _Optional[str] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("handle", "transfer_params", "proof", "start_by", "hold_until")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_PARAMS_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    START_BY_FIELD_NUMBER: _ClassVar[int]
    HOLD_UNTIL_FIELD_NUMBER: _ClassVar[int]
    handle: _handle_pb2.Handle
    transfer_params: _transfer_params_pb2.TransferParams
    proof: _handle_pb2.TokenProof
    start_by: _duration_pb2.Duration
    hold_until: _duration_pb2.Duration
    def __init__(self, handle: _Optional[_Union[_handle_pb2.Handle, _Mapping]] = ..., transfer_params: _Optional[_Union[_transfer_params_pb2.TransferParams, _Mapping]] = ..., proof: _Optional[_Union[_handle_pb2.TokenProof, _Mapping]] = ..., start_by: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., hold_until: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Denial(_message.Message):
    __slots__ = ("reason", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: _errors_pb2.ErrorReason
    message: str
    def __init__(self, reason: _Optional[_Union[_errors_pb2.ErrorReason, str]] = ..., message: _Optional[str] = ...) -> None: ...

class AcquireResult(_message.Message):
    __slots__ = ("call_id", "grant", "denial")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    DENIAL_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    grant: Grant
    denial: Denial
    def __init__(self, call_id: _Optional[int] = ..., grant: _Optional[_Union[Grant, _Mapping]] = ..., denial: _Optional[_Union[Denial, _Mapping]] = ...) -> None: ...

class ReturnOrder(_message.Message):
    __slots__ = ("call_id", "claim_id")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    CLAIM_ID_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    claim_id: str
    def __init__(self, call_id: _Optional[int] = ..., claim_id: _Optional[str] = ...) -> None: ...

class ReturnResult(_message.Message):
    __slots__ = ("call_id", "denial")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    DENIAL_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    denial: Denial
    def __init__(self, call_id: _Optional[int] = ..., denial: _Optional[_Union[Denial, _Mapping]] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("call_id", "handle_ids")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    HANDLE_IDS_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    handle_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, call_id: _Optional[int] = ..., handle_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ReleaseResult(_message.Message):
    __slots__ = ("call_id", "handle_ids")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    HANDLE_IDS_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    handle_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, call_id: _Optional[int] = ..., handle_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Renew(_message.Message):
    __slots__ = ("call_id", "handle_ids", "ttl")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    HANDLE_IDS_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    handle_ids: _containers.RepeatedScalarFieldContainer[str]
    ttl: _duration_pb2.Duration
    def __init__(self, call_id: _Optional[int] = ..., handle_ids: _Optional[_Iterable[str]] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RenewResult(_message.Message):
    __slots__ = ("call_id", "handle_ids")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    HANDLE_IDS_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    handle_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, call_id: _Optional[int] = ..., handle_ids: _Optional[_Iterable[str]] = ...) -> None: ...
