"""Errors of turns, as HTTP has them, to domain errors."""

from __future__ import annotations

from typing import Any

import msgspec

from contraflow.core.errors import (
    ContraflowError,
    EngineFailed,
    EngineUnresponsive,
    InvalidArgument,
    NoEligibleEngine,
    NotFound,
    Overloaded,
    Unauthenticated,
)
from contraflow.runtime.grpc_errors import RETRY_AFTER
from contraflow.web import ApiError, find_header
from contraflow.web.headers import Headers

_OF_ROUTER: dict[int, type[ContraflowError]] = {
    401: Unauthenticated,
    404: NotFound,
    429: Overloaded,
    503: NoEligibleEngine,
    504: EngineUnresponsive,
}
_OF_ENGINE: dict[int, type[ContraflowError]] = {
    # It is our key that the engine does not take, not the client's.
    401: EngineFailed,
    403: EngineFailed,
    404: NotFound,
    429: Overloaded,
    504: EngineUnresponsive,
}
# A status travels in headers, of which gRPC takes 8 KiB, twice and percent-encoded.
_MAX_MESSAGE = 300
_MAX_FIELD = 100
_decoder = msgspec.json.Decoder()


def of_router(error: ApiError) -> ContraflowError:
    """What the router itself answered a request with."""
    return _error(_OF_ROUTER, error.status, error.message, error.param, error.headers)


def of_engine(status: int, headers: Headers, body: bytes) -> ContraflowError:
    """What an engine answered a request with, in place of a stream."""
    if status < 400:
        return EngineFailed("the engine did not stream its answer")
    try:
        value = _decoder.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        value = None
    return of_error_object(value, status, headers)


def of_error_object(value: Any, status: int = 500, headers: Headers = ()) -> ContraflowError:
    """An error object of the OpenAI or the Messages API; its own code counts over ``status``."""
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict):
        error = {}
    code, message, param = error.get("code"), error.get("message"), error.get("param")
    if type(code) is int and 400 <= code < 600:
        status = code
    if not isinstance(message, str) or not message:
        message = f"the engine answered with status {status}"
    return _error(_OF_ENGINE, status, message, param, headers)


def _error(
    kinds: dict[int, type[ContraflowError]],
    status: int,
    message: str,
    param: object,
    headers: Headers,
) -> ContraflowError:
    usual = InvalidArgument if 400 <= status < 500 else EngineFailed
    kind = kinds.get(status, usual)
    metadata = {}
    if kind is InvalidArgument and isinstance(param, str) and param:
        metadata["field"] = param[:_MAX_FIELD]
    seconds = find_header(headers, b"retry-after") or b""
    if kind is Overloaded and seconds.isdigit() and len(seconds) < 6:
        metadata[RETRY_AFTER] = seconds.decode()
    return kind(message[:_MAX_MESSAGE], **metadata)
