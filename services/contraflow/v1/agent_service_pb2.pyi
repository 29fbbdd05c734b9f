import datetime

from contraflow.v1 import engine_pb2 as _engine_pb2
from contraflow.v1 import handle_pb2 as _handle_pb2
from contraflow.v1 import transfer_params_pb2 as _transfer_params_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetHandleRequest(_message.Message):
    __slots__ = ("handle_id",)
    HANDLE_ID_FIELD_NUMBER: _ClassVar[int]
    handle_id: str
    def __init__(self, handle_id: _Optional[str] = ...) -> None: ...

class GetHandleResponse(_message.Message):
    __slots__ = ("handle",)
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    handle: _handle_pb2.Handle
    def __init__(self, handle: _Optional[_Union[_handle_pb2.Handle, _Mapping]] = ...) -> None: ...

class WatchHandlesRequest(_message.Message):
    __slots__ = ("session_key",)
    SESSION_KEY_FIELD_NUMBER: _ClassVar[int]
    session_key: str
    def __init__(self, session_key: _Optional[str] = ...) -> None: ...

class WatchHandlesResponse(_message.Message):
    __slots__ = ("handle", "listed")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    LISTED_FIELD_NUMBER: _ClassVar[int]
    handle: _handle_pb2.Handle
    listed: HandlesListed
    def __init__(self, handle: _Optional[_Union[_handle_pb2.Handle, _Mapping]] = ..., listed: _Optional[_Union[HandlesListed, _Mapping]] = ...) -> None: ...

class HandlesListed(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainEngineRequest(_message.Message):
    __slots__ = ("engine_id", "draining", "release_handles")
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    RELEASE_HANDLES_FIELD_NUMBER: _ClassVar[int]
    engine_id: str
    draining: bool
    release_handles: bool
    def __init__(self, engine_id: _Optional[str] = ..., draining: bool = ..., release_handles: bool = ...) -> None: ...

class DrainEngineResponse(_message.Message):
    __slots__ = ("engine",)
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    engine: _engine_pb2.Engine
    def __init__(self, engine: _Optional[_Union[_engine_pb2.Engine, _Mapping]] = ...) -> None: ...

class AcquireHandleRequest(_message.Message):
    __slots__ = ("claim_id", "tenant", "session_key", "message_digests", "engine_id", "hint_handle_id", "start_by", "produced_by_turn_id")
    CLAIM_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SESSION_KEY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    HINT_HANDLE_ID_FIELD_NUMBER: _ClassVar[int]
    START_BY_FIELD_NUMBER: _ClassVar[int]
    PRODUCED_BY_TURN_ID_FIELD_NUMBER: _ClassVar[int]
    claim_id: str
    tenant: str
    session_key: str
    message_digests: _containers.RepeatedScalarFieldContainer[str]
    engine_id: str
    hint_handle_id: str
    start_by: _duration_pb2.Duration
    produced_by_turn_id: str
    def __init__(self, claim_id: _Optional[str] = ..., tenant: _Optional[str] = ..., session_key: _Optional[str] = ..., message_digests: _Optional[_Iterable[str]] = ..., engine_id: _Optional[str] = ..., hint_handle_id: _Optional[str] = ..., start_by: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., produced_by_turn_id: _Optional[str] = ...) -> None: ...

class AcquireHandleResponse(_message.Message):
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

class ReturnClaimRequest(_message.Message):
    __slots__ = ("claim_id", "engine_id")
    CLAIM_ID_FIELD_NUMBER: _ClassVar[int]
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    claim_id: str
    engine_id: str
    def __init__(self, claim_id: _Optional[str] = ..., engine_id: _Optional[str] = ...) -> None: ...

class ReturnClaimResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReleaseHandlesRequest(_message.Message):
    __slots__ = ("handle_ids",)
    HANDLE_IDS_FIELD_NUMBER: _ClassVar[int]
    handle_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, handle_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ReleaseHandlesResponse(_message.Message):
    __slots__ = ("released_handle_ids",)
    RELEASED_HANDLE_IDS_FIELD_NUMBER: _ClassVar[int]
    released_handle_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, released_handle_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ListHandlesRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "session_key")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SESSION_KEY_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    session_key: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., session_key: _Optional[str] = ...) -> None: ...

class ListHandlesResponse(_message.Message):
    __slots__ = ("handles", "next_page_token", "engine_ids")
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ENGINE_IDS_FIELD_NUMBER: _ClassVar[int]
    handles: _containers.RepeatedCompositeFieldContainer[_handle_pb2.Handle]
    next_page_token: str
    engine_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, handles: _Optional[_Iterable[_Union[_handle_pb2.Handle, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., engine_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ListAttachedEnginesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AttachedEngine(_message.Message):
    __slots__ = ("engine", "attach_epoch", "retained_handles", "pulls")
    class PullsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    ATTACH_EPOCH_FIELD_NUMBER: _ClassVar[int]
    RETAINED_HANDLES_FIELD_NUMBER: _ClassVar[int]
    PULLS_FIELD_NUMBER: _ClassVar[int]
    engine: _engine_pb2.Engine
    attach_epoch: int
    retained_handles: int
    pulls: _containers.ScalarMap[str, int]
    def __init__(self, engine: _Optional[_Union[_engine_pb2.Engine, _Mapping]] = ..., attach_epoch: _Optional[int] = ..., retained_handles: _Optional[int] = ..., pulls: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ListAttachedEnginesResponse(_message.Message):
    __slots__ = ("engines",)
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    engines: _containers.RepeatedCompositeFieldContainer[AttachedEngine]
    def __init__(self, engines: _Optional[_Iterable[_Union[AttachedEngine, _Mapping]]] = ...) -> None: ...
