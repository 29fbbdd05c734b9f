import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HandleState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HANDLE_STATE_UNSPECIFIED: _ClassVar[HandleState]
    HANDLE_STATE_RETAINED: _ClassVar[HandleState]
    HANDLE_STATE_CLAIMED: _ClassVar[HandleState]
    HANDLE_STATE_READ: _ClassVar[HandleState]
    HANDLE_STATE_RELEASED: _ClassVar[HandleState]
    HANDLE_STATE_EXPIRED: _ClassVar[HandleState]
    HANDLE_STATE_LAPSED: _ClassVar[HandleState]
    HANDLE_STATE_LOST: _ClassVar[HandleState]

class PullOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PULL_OUTCOME_UNSPECIFIED: _ClassVar[PullOutcome]
    PULL_OUTCOME_PULLED: _ClassVar[PullOutcome]
    PULL_OUTCOME_DECLINED_MISMATCH: _ClassVar[PullOutcome]
    PULL_OUTCOME_DECLINED_SMALL: _ClassVar[PullOutcome]
    PULL_OUTCOME_DECLINED_NO_PROOF: _ClassVar[PullOutcome]
    PULL_OUTCOME_FAILED: _ClassVar[PullOutcome]
    PULL_OUTCOME_DECLINED_UNSUPPORTED: _ClassVar[PullOutcome]
    PULL_OUTCOME_DECLINED_UNWANTED: _ClassVar[PullOutcome]
HANDLE_STATE_UNSPECIFIED: HandleState
HANDLE_STATE_RETAINED: HandleState
HANDLE_STATE_CLAIMED: HandleState
HANDLE_STATE_READ: HandleState
HANDLE_STATE_RELEASED: HandleState
HANDLE_STATE_EXPIRED: HandleState
HANDLE_STATE_LAPSED: HandleState
HANDLE_STATE_LOST: HandleState
PULL_OUTCOME_UNSPECIFIED: PullOutcome
PULL_OUTCOME_PULLED: PullOutcome
PULL_OUTCOME_DECLINED_MISMATCH: PullOutcome
PULL_OUTCOME_DECLINED_SMALL: PullOutcome
PULL_OUTCOME_DECLINED_NO_PROOF: PullOutcome
PULL_OUTCOME_FAILED: PullOutcome
PULL_OUTCOME_DECLINED_UNSUPPORTED: PullOutcome
PULL_OUTCOME_DECLINED_UNWANTED: PullOutcome

class Handle(_message.Message):
    __slots__ = ("handle_id", "engine_id", "remote_request_id", "tenant", "session_key", "message_digest", "num_tokens", "num_blocks", "ttl", "state", "claim_id", "turn_id", "age")
    HANDLE_ID_FIELD_NUMBER: _ClassVar[int]
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    REMOTE_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SESSION_KEY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CLAIM_ID_FIELD_NUMBER: _ClassVar[int]
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    handle_id: str
    engine_id: str
    remote_request_id: str
    tenant: str
    session_key: str
    message_digest: str
    num_tokens: int
    num_blocks: int
    ttl: _duration_pb2.Duration
    state: HandleState
    claim_id: str
    turn_id: str
    age: _duration_pb2.Duration
    def __init__(self, handle_id: _Optional[str] = ..., engine_id: _Optional[str] = ..., remote_request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., session_key: _Optional[str] = ..., message_digest: _Optional[str] = ..., num_tokens: _Optional[int] = ..., num_blocks: _Optional[int] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., state: _Optional[_Union[HandleState, str]] = ..., claim_id: _Optional[str] = ..., turn_id: _Optional[str] = ..., age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class TokenProof(_message.Message):
    __slots__ = ("block_size", "num_tokens", "digests", "tip", "trimmable")
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    TIP_FIELD_NUMBER: _ClassVar[int]
    TRIMMABLE_FIELD_NUMBER: _ClassVar[int]
    block_size: int
    num_tokens: int
    digests: bytes
    tip: bytes
    trimmable: bool
    def __init__(self, block_size: _Optional[int] = ..., num_tokens: _Optional[int] = ..., digests: _Optional[bytes] = ..., tip: _Optional[bytes] = ..., trimmable: bool = ...) -> None: ...

class PullReport(_message.Message):
    __slots__ = ("claim_id", "turn_id", "engine_id", "remote_engine_id", "outcome", "offered_tokens", "proven_tokens", "local_tokens", "pulled_tokens", "computed_tokens", "bytes", "descriptors", "transfer_time", "wall_time")
    CLAIM_ID_FIELD_NUMBER: _ClassVar[int]
    TURN_ID_FIELD_NUMBER: _ClassVar[int]
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    REMOTE_ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    OFFERED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROVEN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PULLED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTORS_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_TIME_FIELD_NUMBER: _ClassVar[int]
    WALL_TIME_FIELD_NUMBER: _ClassVar[int]
    claim_id: str
    turn_id: str
    engine_id: str
    remote_engine_id: str
    outcome: PullOutcome
    offered_tokens: int
    proven_tokens: int
    local_tokens: int
    pulled_tokens: int
    computed_tokens: int
    bytes: int
    descriptors: int
    transfer_time: _duration_pb2.Duration
    wall_time: _duration_pb2.Duration
    def __init__(self, claim_id: _Optional[str] = ..., turn_id: _Optional[str] = ..., engine_id: _Optional[str] = ..., remote_engine_id: _Optional[str] = ..., outcome: _Optional[_Union[PullOutcome, str]] = ..., offered_tokens: _Optional[int] = ..., proven_tokens: _Optional[int] = ..., local_tokens: _Optional[int] = ..., pulled_tokens: _Optional[int] = ..., computed_tokens: _Optional[int] = ..., bytes: _Optional[int] = ..., descriptors: _Optional[int] = ..., transfer_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., wall_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...
