from contraflow.v1 import engine_pb2 as _engine_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EngineRecord(_message.Message):
    __slots__ = ("engine", "lease_id", "sequence")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    engine: _engine_pb2.Engine
    lease_id: int
    sequence: int
    def __init__(self, engine: _Optional[_Union[_engine_pb2.Engine, _Mapping]] = ..., lease_id: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class SessionRecord(_message.Message):
    __slots__ = ("session_key", "engine_id", "agent_address", "handle_id", "num_tokens", "message_digest", "expires_unix_ms", "branches", "retained_unix_ms")
    SESSION_KEY_FIELD_NUMBER: _ClassVar[int]
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HANDLE_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    BRANCHES_FIELD_NUMBER: _ClassVar[int]
    RETAINED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    session_key: str
    engine_id: str
    agent_address: str
    handle_id: str
    num_tokens: int
    message_digest: str
    expires_unix_ms: int
    branches: int
    retained_unix_ms: int
    def __init__(self, session_key: _Optional[str] = ..., engine_id: _Optional[str] = ..., agent_address: _Optional[str] = ..., handle_id: _Optional[str] = ..., num_tokens: _Optional[int] = ..., message_digest: _Optional[str] = ..., expires_unix_ms: _Optional[int] = ..., branches: _Optional[int] = ..., retained_unix_ms: _Optional[int] = ...) -> None: ...
