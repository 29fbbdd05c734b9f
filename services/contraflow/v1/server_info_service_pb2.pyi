from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ServerLimits(_message.Message):
    __slots__ = ("max_message_bytes", "max_batch_items", "max_page_size", "max_chain_length")
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_ITEMS_FIELD_NUMBER: _ClassVar[int]
    MAX_PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_CHAIN_LENGTH_FIELD_NUMBER: _ClassVar[int]
    max_message_bytes: int
    max_batch_items: int
    max_page_size: int
    max_chain_length: int
    def __init__(self, max_message_bytes: _Optional[int] = ..., max_batch_items: _Optional[int] = ..., max_page_size: _Optional[int] = ..., max_chain_length: _Optional[int] = ...) -> None: ...

class GetServerInfoResponse(_message.Message):
    __slots__ = ("component", "version", "features", "limits")
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    component: str
    version: str
    features: _containers.RepeatedScalarFieldContainer[str]
    limits: ServerLimits
    def __init__(self, component: _Optional[str] = ..., version: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ..., limits: _Optional[_Union[ServerLimits, _Mapping]] = ...) -> None: ...
