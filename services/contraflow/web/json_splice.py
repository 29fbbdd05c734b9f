"""Top-level JSON objects as raw segments: values are never decoded, their bytes never change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from contraflow.core.transfer_params import are_nested_too_deeply

Fields = dict[str, Raw]

_decoder = msgspec.json.Decoder(Fields)
_encoder = msgspec.json.Encoder()
_values = msgspec.json.Decoder()

TRANSFER_KEY = "kv_transfer_params"
TRANSFER_NEEDLE = b'"kv_transfer_params"'


def split_object(data: bytes | Raw) -> Fields:
    """The members of a JSON object; of repeated keys the last counts, as in Python's json.

    Raises msgspec.DecodeError (ValidationError if it is JSON but no object) or RecursionError.
    Strings inside the values are not checked for UTF-8.
    """
    return _decoder.decode(data)


def join_object(fields: Fields) -> bytes:
    """The inverse: members in order, each value's bytes as they are."""
    return _encoder.encode(fields)


def as_raw(value: Any) -> Raw:
    """A value as a raw segment. Raw values, also inside of mappings, stay as they are."""
    if isinstance(value, Raw):
        return value
    return Raw(_encoder.encode(dict(value) if isinstance(value, Mapping) else value))


def value_of(raw: Raw | bytes) -> Any:
    """Decode a segment into Python values."""
    return _values.decode(raw)


def remove_key(data: bytes, key: str) -> tuple[bytes, bytes | None]:
    """Take a top-level key out of a JSON object.

    Returns the object without the key and the key's raw value. Where there is nothing to remove
    (no object, no JSON, no such key) `data` itself comes back, with None.
    """
    try:
        fields = split_object(data)
    except (msgspec.ValidationError, RecursionError):
        return data, None
    except msgspec.DecodeError:
        return _remove_leniently(data, key)
    raw = fields.pop(key, None)
    if raw is None:
        return data, None
    return join_object(fields), bytes(raw)


def _remove_leniently(data: bytes, key: str) -> tuple[bytes, bytes | None]:
    """For what an engine in Python may write though it is no JSON: NaN, half a surrogate pair."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return data, None
    if not isinstance(value, dict) or key not in value:
        return data, None
    raw = json.dumps(value.pop(key)).encode()
    return json.dumps(value).encode(), raw


def transfer_dict(raw: bytes | None) -> dict[str, Any] | None:
    """Transfer parameters as a dict; None if they are absent, null, no object, or nested too
    deeply to be passed on."""
    if raw is None:
        return None
    try:
        value = value_of(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) and not are_nested_too_deeply(value) else None


def take_transfer_params(data: bytes) -> tuple[bytes, dict[str, Any] | None]:
    """Take `kv_transfer_params` out of a whole JSON response.

    Returns what the client may see and the parameters. `data` itself comes back if it does not
    have the key at the top level.
    """
    if TRANSFER_NEEDLE not in data:
        return data, None
    cleaned, raw = remove_key(data, TRANSFER_KEY)
    return cleaned, transfer_dict(raw)
