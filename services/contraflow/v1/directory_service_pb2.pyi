import datetime

from contraflow.v1 import engine_pb2 as _engine_pb2
from contraflow.v1 import errors_pb2 as _errors_pb2
from contraflow.v1 import session_pb2 as _session_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegisterEngineRequest(_message.Message):
    __slots__ = ("engine", "ttl", "registration_id", "sequence")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    REGISTRATION_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    engine: _engine_pb2.Engine
    ttl: _duration_pb2.Duration
    registration_id: str
    sequence: int
    def __init__(self, engine: _Optional[_Union[_engine_pb2.Engine, _Mapping]] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., registration_id: _Optional[str] = ..., sequence: _Optional[int] = ...) -> None: ...

class RegisterEngineResponse(_message.Message):
    __slots__ = ("registration_id", "ttl")
    REGISTRATION_ID_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    registration_id: str
    ttl: _duration_pb2.Duration
    def __init__(self, registration_id: _Optional[str] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RenewEngineRequest(_message.Message):
    __slots__ = ("registration_id",)
    REGISTRATION_ID_FIELD_NUMBER: _ClassVar[int]
    registration_id: str
    def __init__(self, registration_id: _Optional[str] = ...) -> None: ...

class RenewEngineResponse(_message.Message):
    __slots__ = ("ttl",)
    TTL_FIELD_NUMBER: _ClassVar[int]
    ttl: _duration_pb2.Duration
    def __init__(self, ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class DeregisterEngineRequest(_message.Message):
    __slots__ = ("registration_id",)
    REGISTRATION_ID_FIELD_NUMBER: _ClassVar[int]
    registration_id: str
    def __init__(self, registration_id: _Optional[str] = ...) -> None: ...

class DeregisterEngineResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PublishSessionsRequest(_message.Message):
    __slots__ = ("registration_id", "sessions")
    REGISTRATION_ID_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    registration_id: str
    sessions: _containers.RepeatedCompositeFieldContainer[_session_pb2.Session]
    def __init__(self, registration_id: _Optional[str] = ..., sessions: _Optional[_Iterable[_Union[_session_pb2.Session, _Mapping]]] = ...) -> None: ...

class PublishSessionsResponse(_message.Message):
    __slots__ = ("statuses", "revision")
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    statuses: _containers.RepeatedCompositeFieldContainer[_errors_pb2.ItemStatus]
    revision: int
    def __init__(self, statuses: _Optional[_Iterable[_Union[_errors_pb2.ItemStatus, _Mapping]]] = ..., revision: _Optional[int] = ...) -> None: ...

class SessionWithdrawal(_message.Message):
    __slots__ = ("session_key", "handle_id")
    SESSION_KEY_FIELD_NUMBER: _ClassVar[int]
    HANDLE_ID_FIELD_NUMBER: _ClassVar[int]
    session_key: str
    handle_id: str
    def __init__(self, session_key: _Optional[str] = ..., handle_id: _Optional[str] = ...) -> None: ...

class WithdrawSessionsRequest(_message.Message):
    __slots__ = ("withdrawals",)
    WITHDRAWALS_FIELD_NUMBER: _ClassVar[int]
    withdrawals: _containers.RepeatedCompositeFieldContainer[SessionWithdrawal]
    def __init__(self, withdrawals: _Optional[_Iterable[_Union[SessionWithdrawal, _Mapping]]] = ...) -> None: ...

class WithdrawSessionsResponse(_message.Message):
    __slots__ = ("statuses",)
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    statuses: _containers.RepeatedCompositeFieldContainer[_errors_pb2.ItemStatus]
    def __init__(self, statuses: _Optional[_Iterable[_Union[_errors_pb2.ItemStatus, _Mapping]]] = ...) -> None: ...

class GetEngineRequest(_message.Message):
    __slots__ = ("engine_id",)
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    engine_id: str
    def __init__(self, engine_id: _Optional[str] = ...) -> None: ...

class GetEngineResponse(_message.Message):
    __slots__ = ("engine",)
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    engine: _engine_pb2.Engine
    def __init__(self, engine: _Optional[_Union[_engine_pb2.Engine, _Mapping]] = ...) -> None: ...

class ListEnginesRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListEnginesResponse(_message.Message):
    __slots__ = ("engines", "next_page_token")
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    engines: _containers.RepeatedCompositeFieldContainer[_engine_pb2.Engine]
    next_page_token: str
    def __init__(self, engines: _Optional[_Iterable[_Union[_engine_pb2.Engine, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetSessionRequest(_message.Message):
    __slots__ = ("session_key",)
    SESSION_KEY_FIELD_NUMBER: _ClassVar[int]
    session_key: str
    def __init__(self, session_key: _Optional[str] = ...) -> None: ...

class GetSessionResponse(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: _session_pb2.Session
    def __init__(self, session: _Optional[_Union[_session_pb2.Session, _Mapping]] = ...) -> None: ...

class ListSessionsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListSessionsResponse(_message.Message):
    __slots__ = ("sessions", "next_page_token")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[_session_pb2.Session]
    next_page_token: str
    def __init__(self, sessions: _Optional[_Iterable[_Union[_session_pb2.Session, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("start_revision",)
    START_REVISION_FIELD_NUMBER: _ClassVar[int]
    start_revision: int
    def __init__(self, start_revision: _Optional[int] = ...) -> None: ...

class Removal(_message.Message):
    __slots__ = ("engine_id", "session_key")
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_KEY_FIELD_NUMBER: _ClassVar[int]
    engine_id: str
    session_key: str
    def __init__(self, engine_id: _Optional[str] = ..., session_key: _Optional[str] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("engine", "session", "removal", "snapshot_end", "progress", "revision")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    REMOVAL_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_END_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    engine: _engine_pb2.Engine
    session: _session_pb2.Session
    removal: Removal
    snapshot_end: SnapshotEnd
    progress: Progress
    revision: int
    def __init__(self, engine: _Optional[_Union[_engine_pb2.Engine, _Mapping]] = ..., session: _Optional[_Union[_session_pb2.Session, _Mapping]] = ..., removal: _Optional[_Union[Removal, _Mapping]] = ..., snapshot_end: _Optional[_Union[SnapshotEnd, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., revision: _Optional[int] = ...) -> None: ...

class SnapshotEnd(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Progress(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
