"""The upstream client: what it sends, and what it refuses to send."""

from __future__ import annotations

import pytest
from tests.integration.web.client_calls import post
from tests.integration.web.wire import MakeClient, Serve, Upstream, Wire

from contraflow.web import ListenError, Origin, Request, Responder


async def test_what_goes_over_the_wire(upstream: Upstream, make_client: MakeClient) -> None:
    seen = []

    async def script(wire: Wire) -> None:
        while True:
            seen.append(await wire.request())
            await wire.send(b"HTTP/1.1 201 Created\r\nX-A:  b \r\nContent-Length: 2\r\n\r\nok")

    origin, client = await upstream(script), make_client()
    big = b"y" * 100_000
    async with client.request(
        "POST", origin, "/p?q=1", headers=[(b"x-h", b"v")], body=(b"ab", b"cd", big)
    ) as response:
        assert response.status == 201
        assert response.header(b"x-a") == b"b"
        assert not response.reused
        assert await response.read(10) == b"ok"
        assert response.complete
    async with client.request("GET", origin, "/") as response:
        assert response.reused
        assert await response.read(10) == b"ok"
    host = origin.authority.encode()
    assert seen == [
        (
            "POST /p?q=1 HTTP/1.1",
            {b"host": host, b"x-h": b"v", b"content-length": b"100004"},
            b"abcd" + big,
        ),
        ("GET / HTTP/1.1", {b"host": host}, b""),
    ]
    assert client.pool(origin).idle_connections == 1


@pytest.mark.parametrize("name", [b"host", b"content-length", b"transfer-encoding", b"connection"])
async def test_framing_headers_belong_to_the_client(name: bytes, make_client: MakeClient) -> None:
    with pytest.raises(ValueError, match="set by the client"):
        make_client().request("GET", Origin("h", 1), "/", headers=[(name, b"1")])


@pytest.mark.parametrize("path", ["x", "/a b", "/a\r\nX: y", "/\u00e9", ""])
async def test_paths_cannot_smuggle(path: str, make_client: MakeClient) -> None:
    with pytest.raises(ValueError, match="path"):
        make_client().request("GET", Origin("h", 1), path)


async def test_head_requests(upstream: Upstream, make_client: MakeClient) -> None:
    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n")

    async with make_client().request("HEAD", await upstream(script), "/") as response:
        assert response.header(b"content-length") == b"99"
        assert await response.read(10) == b""


async def test_scenario_14_ipv6_upstream(serve: Serve, make_client: MakeClient) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        responder.respond(200, [], request.header(b"host") or b"")

    try:
        server = await serve(handler, host="::1")
    except ListenError:
        pytest.skip("no IPv6 loopback here")
    origin = Origin.parse(f"http://[::1]:{server.port}")
    assert await post(make_client(), origin) == f"[::1]:{server.port}".encode()
