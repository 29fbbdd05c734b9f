"""``kv_transfer_params`` between the JSON objects of vLLM and ``contraflow.v1``, lossless."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from contraflow.core.transfer_params import Params, are_nested_too_deeply, without_private
from contraflow.v1 import transfer_params_pb2 as pb

_TYPED: dict[str, tuple[type, int | None]] = {
    "do_remote_prefill": (bool, None),
    "do_remote_decode": (bool, None),
    "remote_engine_id": (str, None),
    "remote_request_id": (str, None),
    "remote_host": (str, None),
    "remote_port": (int, 2**32),
    "tp_size": (int, 2**32),
    "dcp_size": (int, 2**32),
    "pp_size": (int, 2**32),
    "remote_num_tokens": (int, 2**64),
    "remote_blocks_expiry_time": (float, None),
    "remote_registration_generation": (int, 2**64),
    "transfer_mode": (str, None),
}
_BLOCKS = "remote_block_ids"


def params_to_proto(params: Mapping[str, Any]) -> pb.TransferParams:
    """Typed where key and JSON type are known, JSON text otherwise; private keys dropped."""
    message = pb.TransferParams()
    for key, value in without_private(params).items():
        if key == _BLOCKS and _is_blocks(value):
            message.has_remote_block_ids = True
            message.remote_block_ids.extend(pb.BlockGroup(block_ids=ids) for ids in value)
        elif key in _TYPED and _fits(value, *_TYPED[key]):
            setattr(message, key, value)
        else:
            message.extra_json[key] = json.dumps(value)
    return message


def params_from_proto(message: pb.TransferParams) -> Params:
    """The JSON object that ``params_to_proto`` was given. Raises ValueError if something in it
    is no JSON, or nested too deeply to be passed on."""
    try:
        params: Params = {key: json.loads(text) for key, text in message.extra_json.items()}
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if are_nested_too_deeply(params):
        raise ValueError("nested too deeply")
    if message.has_remote_block_ids:
        params[_BLOCKS] = [list(group.block_ids) for group in message.remote_block_ids]
    for key in _TYPED:
        if message.HasField(key):
            params[key] = getattr(message, key)
    return params


def _fits(value: object, kind: type, limit: int | None) -> bool:
    if type(value) is not kind:
        return False
    if isinstance(value, str):
        return _is_unicode(value)
    return limit is None or (isinstance(value, int) and 0 <= value < limit)


def _is_unicode(text: str) -> bool:
    # JSON can name half a surrogate pair, a protobuf string can not hold it.
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_blocks(value: object) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(group, list | tuple)
        and all(type(block) is int and 0 <= block < 2**32 for block in group)
        for group in value
    )
