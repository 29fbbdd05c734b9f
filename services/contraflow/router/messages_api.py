"""The Messages API at the front door.

vLLM takes and returns ``kv_transfer_params`` and ``cache_salt`` on this path as it does on
that of chat completions, in 0.32 and 0.33 alike: both legs of a turn go there as they are, and
no message is translated here. What differs is where a key is sent, and how errors look.
"""

from __future__ import annotations

import msgspec

from contraflow.router.relay import ClientResponse
from contraflow.router.turn import Turns
from contraflow.web import ApiError, Request
from contraflow.web.headers import Headers

_JSON = (b"content-type", b"application/json")
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


class MessagesApi:
    """Serves turns to clients of the Messages API."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    async def serve(self, request: Request, responder: ClientResponse) -> None:
        """Answer a request. Raises ApiError where there is no answer to pass on."""
        key = request.header(b"x-api-key")
        if key is not None:  # behind an Authorization header, which goes first
            request.headers.append((b"authorization", b"Bearer " + key))
        await self._turns.serve(request, _MessagesResponse(responder))


class MessagesError(ApiError):
    """An error in the shape of the Messages API."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.status, error.message, err_type=error.err_type, param=error.param)
        self.headers = error.headers

    def body(self) -> bytes:
        """The JSON body of this error."""
        return _error_body(self.status, self.message)


class _MessagesResponse:
    """A ``ClientResponse`` that brings an engine's errors into that shape.

    Engines answer in it as far as they look at a request themselves, with types that clients
    do not know; what their web framework refuses comes in the OpenAI shape.
    """

    def __init__(self, inner: ClientResponse) -> None:
        self._inner = inner
        self.start = inner.start
        self.write = inner.write
        self.finish = inner.finish
        self.abort = inner.abort

    @property
    def started(self) -> bool:
        """As of the client's connection."""
        return self._inner.started

    @property
    def status(self) -> int:
        """As of the client's connection."""
        return self._inner.status

    def respond(self, status: int, headers: Headers = (), body: bytes = b"") -> None:
        """Send a complete response."""
        if status >= 400:
            body = _error_body(status, _message(body) or f"The engine answered with {status}.")
            headers = [_JSON, *(pair for pair in headers if pair[0] != b"content-type")]
        self._inner.respond(status, headers, body)


def _error_body(status: int, message: str) -> bytes:
    usual = "api_error" if status >= 500 else "invalid_request_error"
    error = {"type": _TYPES.get(status, usual), "message": message}
    return _encoder.encode({"type": "error", "error": error})


def _message(body: bytes) -> str:
    try:
        value = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return ""
    error = value.get("error") if isinstance(value, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else ""
