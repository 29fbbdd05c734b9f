"""Requests to a server, a handler that shows what it got, and its side of a connection."""

from __future__ import annotations

from typing import Any

from tests.support.wait import until

from contraflow.web import HttpServer, Request, Responder

GET = b"GET /a?b=1 HTTP/1.1\r\nHost: h\r\n\r\n"
CLOSE = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"


def post(body: bytes, *headers: bytes) -> bytes:
    """As it goes over the wire."""
    lines = b"".join(b"%b\r\n" % header for header in headers)
    head = b"POST /v1/x HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n%b\r\n"
    return head % (len(body), lines) + body


async def echo(request: Request, responder: Responder) -> None:
    """A handler."""
    responder.send_json(
        200,
        {
            "method": request.method,
            "path": request.path,
            "query": request.query,
            "body": request.body.decode(),
            "x": (request.header(b"x-test") or b"").decode(),
        },
    )


async def only_connection(server: HttpServer) -> Any:
    """The server's side of the one that is open."""
    await until(lambda: server.connections == 1, "the connection is open")
    return next(iter(server._connections))
