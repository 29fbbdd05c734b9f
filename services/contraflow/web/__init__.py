"""HTTP: server, upstream client, and OpenAI bodies and streams as raw bytes.

It knows nothing of planning, gRPC or sessions.

server: server -> connection -> request_reader (bytes in), responder (bytes out), request
client: client -> pool -> upstream_connection -> upstream_response; origin, upstream_errors
bodies: body (requests, the two legs), sse (streams), json_splice (what both are made of)
"""

from contraflow.web.body import (
    BodyError,
    RequestBody,
    decode_body,
    get_str,
    parse_body,
    prefill_body,
)
from contraflow.web.client import UpstreamClient
from contraflow.web.errors import (
    ApiError,
    ClientDisconnected,
    ListenError,
    error_body,
    error_type,
)
from contraflow.web.headers import end_to_end, find_header, forwardable
from contraflow.web.json_splice import remove_key, take_transfer_params
from contraflow.web.limits import ClientLimits, ServerLimits
from contraflow.web.origin import Origin
from contraflow.web.request import Request
from contraflow.web.responder import Responder
from contraflow.web.server import Handler, HttpServer
from contraflow.web.sse import SseEventTooLarge, SseFilter
from contraflow.web.upstream_errors import (
    UpstreamConnectError,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamReset,
    UpstreamTimeout,
)
from contraflow.web.upstream_response import UpstreamResponse

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
