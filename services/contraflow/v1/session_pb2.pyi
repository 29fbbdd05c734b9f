import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Session(_message.Message):
    __slots__ = ("session_key", "engine_id", "agent_address", "handle_id", "num_tokens", "message_digest", "ttl", "branches", "age")
    SESSION_KEY_FIELD_NUMBER: _ClassVar[int]
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HANDLE_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    BRANCHES_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    session_key: str
    engine_id: str
    agent_address: str
    handle_id: str
    num_tokens: int
    message_digest: str
    ttl: _duration_pb2.Duration
    branches: int
    age: _duration_pb2.Duration
    def __init__(self, session_key: _Optional[str] = ..., engine_id: _Optional[str] = ..., agent_address: _Optional[str] = ..., handle_id: _Optional[str] = ..., num_tokens: _Optional[int] = ..., message_digest: _Optional[str] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., branches: _Optional[int] = ..., age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...
