import datetime

from contraflow.v1 import engine_pb2 as _engine_pb2
from contraflow.v1 import handle_pb2 as _handle_pb2
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
    DECISION_DECODE_ONLY: _ClassVar[Decision]

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
    DECISION_REASON_AMBIGUOUS_SESSION: _ClassVar[DecisionReason]
    DECISION_REASON_PREFILL_UNREACHABLE: _ClassVar[DecisionReason]
    DECISION_REASON_NO_PREFILL_ENGINE: _ClassVar[DecisionReason]
    DECISION_REASON_SHORT_SUFFIX: _ClassVar[DecisionReason]
DECISION_UNSPECIFIED: Decision
DECISION_PULL: Decision
DECISION_RECOMPUTE: Decision
DECISION_DECODE_ONLY: Decision
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
DECISION_REASON_AMBIGUOUS_SESSION: DecisionReason
DECISION_REASON_PREFILL_UNREACHABLE: DecisionReason
DECISION_REASON_NO_PREFILL_ENGINE: DecisionReason
DECISION_REASON_SHORT_SUFFIX: DecisionReason

class Message(_message.Message):
    __slots__ = ("role", "content", "extra_json")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    EXTRA_JSON_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    extra_json: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ..., extra_json: _Optional[str] = ...) -> None: ...

class Messages(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    def __init__(self, messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class RawRequest(_message.Message):
    __slots__ = ("path", "json")
    PATH_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    path: str
    json: str
    def __init__(self, path: _Optional[str] = ..., json: _Optional[str] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("max_tokens", "temperature", "top_p", "seed", "stop")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, max_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("model", "session_id", "messages", "token_ids", "raw", "sampling", "extra_json")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    EXTRA_JSON_FIELD_NUMBER: _ClassVar[int]
    model: str
    session_id: str
    messages: Messages
    token_ids: TokenIds
    raw: RawRequest
    sampling: Sampling
    extra_json: str
    def __init__(self, model: _Optional[str] = ..., session_id: _Optional[str] = ..., messages: _Optional[_Union[Messages, _Mapping]] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., raw: _Optional[_Union[RawRequest, _Mapping]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., extra_json: _Optional[str] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("plan", "chunk", "usage", "result")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    plan: TurnPlan
    chunk: Chunk
    usage: Usage
    result: TurnResult
    def __init__(self, plan: _Optional[_Union[TurnPlan, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., result: _Optional[_Union[TurnResult, _Mapping]] = ...) -> None: ...

class TurnPlan(_message.Message):
    __slots__ = ("turn_id", "decision", "reason", "prefill_engine_id", "decode_engine_id", "handle_tokens")
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PREFILL_ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    DECODE_ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    HANDLE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    turn_id: str
    decision: Decision
    reason: DecisionReason
    prefill_engine_id: str
    decode_engine_id: str
    handle_tokens: int
    def __init__(self, turn_id: _Optional[str] = ..., decision: _Optional[_Union[Decision, str]] = ..., reason: _Optional[_Union[DecisionReason, str]] = ..., prefill_engine_id: _Optional[str] = ..., decode_engine_id: _Optional[str] = ..., handle_tokens: _Optional[int] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("index", "text", "finish_reason", "json")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    index: int
    text: str
    finish_reason: str
    json: str
    def __init__(self, index: _Optional[int] = ..., text: _Optional[str] = ..., finish_reason: _Optional[str] = ..., json: _Optional[str] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "cached_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class TurnResult(_message.Message):
    __slots__ = ("decision", "reason", "denial", "pull", "time_to_first_token", "prefill_time", "total_time")
    DECISION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DENIAL_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TIME_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TIME_FIELD_NUMBER: _ClassVar[int]
    decision: Decision
    reason: DecisionReason
    denial: str
    pull: _handle_pb2.PullReport
    time_to_first_token: _duration_pb2.Duration
    prefill_time: _duration_pb2.Duration
    total_time: _duration_pb2.Duration
    def __init__(self, decision: _Optional[_Union[Decision, str]] = ..., reason: _Optional[_Union[DecisionReason, str]] = ..., denial: _Optional[str] = ..., pull: _Optional[_Union[_handle_pb2.PullReport, _Mapping]] = ..., time_to_first_token: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., prefill_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., total_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class PlanTurnRequest(_message.Message):
    __slots__ = ("tenant", "session_id", "model", "openai_json", "prompt_tokens")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    OPENAI_JSON_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    session_id: str
    model: str
    openai_json: str
    prompt_tokens: int
    def __init__(self, tenant: _Optional[str] = ..., session_id: _Optional[str] = ..., model: _Optional[str] = ..., openai_json: _Optional[str] = ..., prompt_tokens: _Optional[int] = ...) -> None: ...

class Candidate(_message.Message):
    __slots__ = ("engine_id", "role", "score", "rejected_reason", "endpoint", "load", "home")
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    REJECTED_REASON_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    HOME_FIELD_NUMBER: _ClassVar[int]
    engine_id: str
    role: _engine_pb2.EngineRole
    score: float
    rejected_reason: str
    endpoint: str
    load: int
    home: bool
    def __init__(self, engine_id: _Optional[str] = ..., role: _Optional[_Union[_engine_pb2.EngineRole, str]] = ..., score: _Optional[float] = ..., rejected_reason: _Optional[str] = ..., endpoint: _Optional[str] = ..., load: _Optional[int] = ..., home: bool = ...) -> None: ...

class CostEstimate(_message.Message):
    __slots__ = ("decision", "pulled_tokens", "computed_tokens", "time", "error")
    DECISION_FIELD_NUMBER: _ClassVar[int]
    PULLED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    decision: Decision
    pulled_tokens: int
    computed_tokens: int
    time: _duration_pb2.Duration
    error: _duration_pb2.Duration
    def __init__(self, decision: _Optional[_Union[Decision, str]] = ..., pulled_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., error: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class PlanTurnResponse(_message.Message):
    __slots__ = ("decision", "reason", "prefill_engine_id", "decode_engine_id", "handle_id", "handle_tokens", "candidates", "session_key", "estimates")
    DECISION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PREFILL_ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    DECODE_ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    HANDLE_ID_FIELD_NUMBER: _ClassVar[int]
    HANDLE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    SESSION_KEY_FIELD_NUMBER: _ClassVar[int]
    ESTIMATES_FIELD_NUMBER: _ClassVar[int]
    decision: Decision
    reason: DecisionReason
    prefill_engine_id: str
    decode_engine_id: str
    handle_id: str
    handle_tokens: int
    candidates: _containers.RepeatedCompositeFieldContainer[Candidate]
    session_key: str
    estimates: _containers.RepeatedCompositeFieldContainer[CostEstimate]
    def __init__(self, decision: _Optional[_Union[Decision, str]] = ..., reason: _Optional[_Union[DecisionReason, str]] = ..., prefill_engine_id: _Optional[str] = ..., decode_engine_id: _Optional[str] = ..., handle_id: _Optional[str] = ..., handle_tokens: _Optional[int] = ..., candidates: _Optional[_Iterable[_Union[Candidate, _Mapping]]] = ..., session_key: _Optional[str] = ..., estimates: _Optional[_Iterable[_Union[CostEstimate, _Mapping]]] = ...) -> None: ...

class EndSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class EndSessionResponse(_message.Message):
    __slots__ = ("released_handle_ids", "complete")
    RELEASED_HANDLE_IDS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    released_handle_ids: _containers.RepeatedScalarFieldContainer[str]
    complete: bool
    def __init__(self, released_handle_ids: _Optional[_Iterable[str]] = ..., complete: bool = ...) -> None: ...

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
