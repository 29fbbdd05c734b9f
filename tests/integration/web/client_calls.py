"""A request of the upstream client, and an upstream that answers all of them."""

from __future__ import annotations

from tests.integration.web.wire import Wire

from contraflow.web import Origin, UpstreamClient

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def post(client: UpstreamClient, origin: Origin) -> bytes:
    """The body of the answer."""
    async with client.request("POST", origin, "/v1/x", body=b"{}") as response:
        return await response.read(1 << 20)


async def always_ok(wire: Wire) -> None:
    """A script of an upstream."""
    while True:
        await wire.request()
        await wire.send(OK)
