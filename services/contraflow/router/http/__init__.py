"""The router's HTTP stack: server, upstream client, and OpenAI bodies and streams as raw bytes.

It knows nothing of planning, gRPC or sessions.

server: server -> connection -> request_reader (bytes in), responder (bytes out), request
client: client -> pool -> upstream_connection -> upstream_response; origin, upstream_errors
bodies: body (requests, the two legs), sse (streams), json_splice (what both are made of)
"""

from contraflow.router.http.body import (
    BodyError,
    RequestBody,
    decode_body,
    get_str,
    parse_body,
    prefill_body,
)
from contraflow.router.http.client import UpstreamClient
from contraflow.router.http.errors import (
    ApiError,
    ClientDisconnected,
    ListenError,
    error_body,
    error_type,
)
from contraflow.router.http.headers import end_to_end, find_header, forwardable
from contraflow.router.http.json_splice import remove_key, take_transfer_params
from contraflow.router.http.limits import ClientLimits, ServerLimits
from contraflow.router.http.origin import Origin
from contraflow.router.http.request import Request
from contraflow.router.http.responder import Responder
from contraflow.router.http.server import Handler, HttpServer
from contraflow.router.http.sse import SseEventTooLarge, SseFilter
from contraflow.router.http.upstream_errors import (
    UpstreamConnectError,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamReset,
    UpstreamTimeout,
)
from contraflow.router.http.upstream_response import UpstreamResponse

__all__ = [
    "ApiError",
    "BodyError",
    "ClientDisconnected",
    "ClientLimits",
    "Handler",
    "HttpServer",
    "ListenError",
    "Origin",
    "Request",
    "RequestBody",
    "Responder",
    "ServerLimits",
    "SseEventTooLarge",
    "SseFilter",
    "UpstreamClient",
    "UpstreamConnectError",
    "UpstreamError",
    "UpstreamProtocolError",
    "UpstreamReset",
    "UpstreamResponse",
    "UpstreamTimeout",
    "decode_body",
    "end_to_end",
    "error_body",
    "error_type",
    "find_header",
    "forwardable",
    "get_str",
    "parse_body",
    "prefill_body",
    "remove_key",
    "take_transfer_params",
]
