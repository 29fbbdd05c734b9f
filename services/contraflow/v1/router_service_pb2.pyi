import datetime

from contraflow.v1 import engine_pb2 as _engine_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Decision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DECISION_UNSPECIFIED: _ClassVar[Decision]
    DECISION_PULL: _ClassVar[Decision]
    DECISION_RECOMPUTE: _ClassVar[Decision]

class DecisionReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DECISION_REASON_UNSPECIFIED: _ClassVar[DecisionReason]
    DECISION_REASON_HANDLE_AVAILABLE: _ClassVar[DecisionReason]
    DECISION_REASON_NO_SESSION: _ClassVar[DecisionReason]
    DECISION_REASON_NO_HANDLE: _ClassVar[DecisionReason]
    DECISION_REASON_BELOW_THRESHOLD: _ClassVar[DecisionReason]
    DECISION_REASON_INCOMPATIBLE: _ClassVar[DecisionReason]
    DECISION_REASON_UNSUPPORTED_REQUEST: _ClassVar[DecisionReason]
    DECISION_REASON_ACQUIRE_DENIED: _ClassVar[DecisionReason]
    DECISION_REASON_ACQUIRE_TIMEOUT: _ClassVar[DecisionReason]
    DECISION_REASON_LEASE_TOO_SHORT: _ClassVar[DecisionReason]
DECISION_UNSPECIFIED: Decision
DECISION_PULL: Decision
DECISION_RECOMPUTE: Decision
DECISION_REASON_UNSPECIFIED: DecisionReason
DECISION_REASON_HANDLE_AVAILABLE: DecisionReason
DECISION_REASON_NO_SESSION: DecisionReason
DECISION_REASON_NO_HANDLE: DecisionReason
DECISION_REASON_BELOW_THRESHOLD: DecisionReason
DECISION_REASON_INCOMPATIBLE: DecisionReason
DECISION_REASON_UNSUPPORTED_REQUEST: DecisionReason
DECISION_REASON_ACQUIRE_DENIED: DecisionReason
DECISION_REASON_ACQUIRE_TIMEOUT: DecisionReason
DECISION_REASON_LEASE_TOO_SHORT: DecisionReason

class PlanTurnRequest(_message.Message):
    __slots__ = ("tenant", "session_id", "model")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    session_id: str
    model: str
    def __init__(self, tenant: _Optional[str] = ..., session_id: _Optional[str] = ..., model: _Optional[str] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("engine_id", "role", "score", "rejected_reason")
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    REJECTED_REASON_FIELD_NUMBER: _ClassVar[int]
    engine_id: str
    role: _engine_pb2.EngineRole
    score: float
    rejected_reason: str
    def __init__(self, engine_id: _Optional[str] = ..., role: _Optional[_Union[_engine_pb2.EngineRole, str]] = ..., score: _Optional[float] = ..., rejected_reason: _Optional[str] = ...) -> None: ...

class PlanTurnResponse(_message.Message):
    __slots__ = ("decision", "reason", "prefill_engine_id", "decode_engine_id", "handle_id", "handle_tokens", "candidates")
    DECISION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PREFILL_ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    DECODE_ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    HANDLE_ID_FIELD_NUMBER: _ClassVar[int]
    HANDLE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    decision: Decision
    reason: DecisionReason
    prefill_engine_id: str
    decode_engine_id: str
    handle_id: str
    handle_tokens: int
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    def __init__(self, decision: _Optional[_Union[Decision, str]] = ..., reason: _Optional[_Union[DecisionReason, str]] = ..., prefill_engine_id: _Optional[str] = ..., decode_engine_id: _Optional[str] = ..., handle_id: _Optional[str] = ..., handle_tokens: _Optional[int] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ...) -> None: ...

class ListViewEnginesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListViewEnginesResponse(_message.Message):
    __slots__ = ("engines", "revision", "age")
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    engines: _containers.RepeatedCompositeFieldContainer[_engine_pb2.Engine]
    revision: int
    age: _duration_pb2.Duration
    def __init__(self, engines: _Optional[_Iterable[_Union[_engine_pb2.Engine, _Mapping]]] = ..., revision: _Optional[int] = ..., age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...
