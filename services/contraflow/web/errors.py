"""The OpenAI error shape, with vLLM's fields: message, type, param and the status as code."""

from __future__ import annotations

import msgspec

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
    415: "UnsupportedMediaTypeError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
    431: "RequestTooLargeError",
    500: "InternalServerError",
    501: "NotImplementedError",
    502: "BadGatewayError",
    503: "ServiceUnavailableError",
    504: "GatewayTimeoutError",
}

_encoder = msgspec.json.Encoder()


def error_type(status: int) -> str:
    """The `type` that goes with a status when the caller names none."""
    return _TYPES.get(status) or ("BadRequestError" if status < 500 else "InternalServerError")


def error_body(
    status: int, message: str, *, err_type: str | None = None, param: str | None = None
) -> bytes:
    """Encode `{"error": {"message", "type", "param", "code"}}`; `code` is the HTTP status."""
    return _encoder.encode(
        {
            "error": {
                "message": message,
                "type": err_type or error_type(status),
                "param": param,
                "code": status,
            }
        }
    )


class ApiError(Exception):
    """An answer for the client: raise it from a handler before the response has started.

    `message` is public text. Causes belong in the log.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        err_type: str | None = None,
        param: str | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.err_type = err_type or error_type(status)
        self.param = param
        self.headers = headers

    def body(self) -> bytes:
        """The JSON body of this error."""
        return error_body(self.status, self.message, err_type=self.err_type, param=self.param)


class ListenError(Exception):
    """The server cannot listen on an address; the message names it."""

    def __init__(self, host: str, port: int, why: str) -> None:
        super().__init__(f"cannot listen on {host_port(host, port)}: {why}")
        self.host = host
        self.port = port


class ClientDisconnected(ConnectionError):
    """The client went away, so the response cannot be written."""


def host_port(host: str, port: int) -> str:
    """`host:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
