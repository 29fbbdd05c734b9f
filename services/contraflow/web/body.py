"""OpenAI request bodies as raw top-level segments, and the bodies of the two legs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from contraflow.web.errors import ApiError
from contraflow.web.json_splice import (
    TRANSFER_KEY,
    Fields,
    as_raw,
    join_object,
    split_object,
    value_of,
)

CLIENT_NEVER_SENDS = (TRANSFER_KEY, "ec_transfer_params")
"""Keys taken out of every client body, at the top level and inside `vllm_xargs`, which vLLM merges
into the same place: through either a client could make an engine read foreign memory, or kill it
with a value of the wrong type."""

PREFILL_SETS: Mapping[str, Raw] = {
    "stream": Raw(b"false"),
    "max_tokens": Raw(b"1"),
}
PREFILL_DROPS = frozenset({"max_completion_tokens", "min_tokens", "stream_options"})
"""What the prefill leg's body changes. Everything that shapes the prompt (messages, tools,
tool_choice, chat_template_kwargs, ...) must reach both engines alike, or the token proof fails."""

XARGS = "vllm_xargs"


class BodyError(ApiError):
    """The body, or one of its keys (`param`), is not what the API takes: status 400."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(400, message, param=param)


class RequestBody:
    """A client's body: `fields` without what clients never send.

    `stripped` says whether it held any of that, for the log.
    """

    __slots__ = ("fields", "stripped")

    def __init__(self, fields: Fields, stripped: bool) -> None:
        self.fields = fields
        self.stripped = stripped


def parse_body(data: bytes) -> RequestBody:
    """Check that a body is one JSON object in UTF-8 and split it. Raises BodyError."""
    try:
        if not data.isascii():
            data.decode()  # raw segments are not checked by the JSON decoder
        fields = split_object(data)
    except UnicodeDecodeError as error:
        raise BodyError(f"The request body is not UTF-8 (byte {error.start}).") from None
    except msgspec.ValidationError:
        raise BodyError("The request body must be a JSON object.") from None
    except msgspec.DecodeError as error:
        raise BodyError(f"The request body is not valid JSON: {error}.") from None
    except RecursionError:
        raise BodyError("The request body is nested too deeply.") from None
    return RequestBody(fields, _strip(fields))


def _strip(fields: Fields) -> bool:
    found = False
    for key in CLIENT_NEVER_SENDS:
        found |= fields.pop(key, None) is not None
    xargs = fields.get(XARGS)
    if xargs is not None:
        fields[XARGS] = xargs_without(xargs, *CLIENT_NEVER_SENDS)
        found |= fields[XARGS] is not xargs
    return found


def xargs_without(xargs: Raw, *keys: str) -> Raw:
    """`vllm_xargs` without some keys; itself, if it has none of them or is no object.

    Raises BodyError where that can not be told: an engine might read what we can not.
    """
    try:
        members = split_object(xargs)
    except msgspec.ValidationError:
        return xargs
    except (msgspec.DecodeError, RecursionError):
        raise BodyError(f"`{XARGS}` can not be read.", param=XARGS) from None
    kept = {key: raw for key, raw in members.items() if key not in keys}
    return xargs if len(kept) == len(members) else Raw(join_object(kept))


def get_str(fields: Fields, name: str) -> str | None:
    """A string; None if absent or null. BodyError naming it otherwise."""
    value = _get(fields, name)
    if value is not None and not isinstance(value, str):
        raise _wrong(name, "a string")
    return value


def _get(fields: Fields, name: str) -> Any:
    raw = fields.get(name)
    if raw is None:
        return None
    if bytes(memoryview(raw)[:1]) in (b"{", b"["):
        return ()  # of no scalar type: don't decode what may be huge
    try:
        return value_of(raw)
    except msgspec.DecodeError as error:
        raise BodyError(f"`{name}` is out of range: {error}.", param=name) from None


def _wrong(name: str, expected: str) -> BodyError:
    return BodyError(f"`{name}` must be {expected}.", param=name)


def prefill_body(
    fields: Fields,
    transfer_params: Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
) -> bytes:
    """The body for the prefill engine: one token, not streamed, with transfer parameters.

    `overrides` are applied last: any value that msgspec encodes, or `msgspec.UNSET` to leave a
    key out. `fields` is not changed; values that are not named keep their bytes.
    """
    body = {key: raw for key, raw in fields.items() if key not in PREFILL_DROPS}
    body.update(PREFILL_SETS)
    return _finish(body, transfer_params, overrides)


def decode_body(
    fields: Fields,
    transfer_params: Mapping[str, Any] | None,
    overrides: Mapping[str, Any] | None = None,
) -> bytes:
    """The body for the decode engine: the client's, with the prefill engine's parameters.

    None sends no transfer parameters at all. `overrides` as in `prefill_body`.
    """
    return _finish(dict(fields), transfer_params, overrides)


def _finish(
    body: Fields, transfer_params: Mapping[str, Any] | None, overrides: Mapping[str, Any] | None
) -> bytes:
    body.pop(TRANSFER_KEY, None)
    if transfer_params is not None:
        body[TRANSFER_KEY] = as_raw(transfer_params)
    for key, value in (overrides or {}).items():
        if value is UNSET:
            body.pop(key, None)
        else:
            body[key] = as_raw(value)
    return join_object(body)
