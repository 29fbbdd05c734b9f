from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EngineRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENGINE_ROLE_UNSPECIFIED: _ClassVar[EngineRole]
    ENGINE_ROLE_PREFILL: _ClassVar[EngineRole]
    ENGINE_ROLE_DECODE: _ClassVar[EngineRole]
ENGINE_ROLE_UNSPECIFIED: EngineRole
ENGINE_ROLE_PREFILL: EngineRole
ENGINE_ROLE_DECODE: EngineRole

class Engine(_message.Message):
    __slots__ = ("engine_id", "boot_nonce", "role", "endpoint", "dp_rank", "agent_address", "served_models", "model", "block_size", "num_blocks", "kv_dtype", "tp_size", "vllm_version", "connector_version", "bidirectional", "trimmable", "draining", "compatibility_class")
    ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_NONCE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    DP_RANK_FIELD_NUMBER: _ClassVar[int]
    AGENT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SERVED_MODELS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    KV_DTYPE_FIELD_NUMBER: _ClassVar[int]
    TP_SIZE_FIELD_NUMBER: _ClassVar[int]
    VLLM_VERSION_FIELD_NUMBER: _ClassVar[int]
    CONNECTOR_VERSION_FIELD_NUMBER: _ClassVar[int]
    BIDIRECTIONAL_FIELD_NUMBER: _ClassVar[int]
    TRIMMABLE_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_CLASS_FIELD_NUMBER: _ClassVar[int]
    engine_id: str
    boot_nonce: str
    role: EngineRole
    endpoint: str
    dp_rank: int
    agent_address: str
    served_models: _containers.RepeatedScalarFieldContainer[str]
    model: str
    block_size: int
    num_blocks: int
    kv_dtype: str
    tp_size: int
    vllm_version: str
    connector_version: int
    bidirectional: bool
    trimmable: bool
    draining: bool
    compatibility_class: str
    def __init__(self, engine_id: _Optional[str] = ..., boot_nonce: _Optional[str] = ..., role: _Optional[_Union[EngineRole, str]] = ..., endpoint: _Optional[str] = ..., dp_rank: _Optional[int] = ..., agent_address: _Optional[str] = ..., served_models: _Optional[_Iterable[str]] = ..., model: _Optional[str] = ..., block_size: _Optional[int] = ..., num_blocks: _Optional[int] = ..., kv_dtype: _Optional[str] = ..., tp_size: _Optional[int] = ..., vllm_version: _Optional[str] = ..., connector_version: _Optional[int] = ..., bidirectional: bool = ..., trimmable: bool = ..., draining: bool = ..., compatibility_class: _Optional[str] = ...) -> None: ...
