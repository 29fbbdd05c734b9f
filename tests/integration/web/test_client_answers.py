"""The upstream client: answers in all their forms, and those that it does not accept."""

from __future__ import annotations

import asyncio

import pytest
from tests.integration.web.client_calls import OK, post
from tests.integration.web.wire import MakeClient, Upstream, Wire
from tests.support.wait import until

from contraflow.web import UpstreamProtocolError


async def test_chunks_are_handed_on_as_they_arrive(
    upstream: Upstream, make_client: MakeClient
) -> None:
    more = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        await more.wait()
        await wire.send(b"3\r\ntwo\r\n0\r\n\r\n")
        await wire.request()
        await wire.send(OK)

    origin, client = await upstream(script), make_client()
    async with client.request("POST", origin, "/") as response:
        pieces = response.iter_raw()
        assert await anext(pieces) == b"one"
        more.set()
        assert [piece async for piece in pieces] == [b"two"]
    assert await post(client, origin) == b"ok"
    assert client.pool(origin).open_connections == 1


async def test_scenario_12_a_4_mb_chunk(upstream: Upstream, make_client: MakeClient) -> None:
    big = b"z" * (4 << 20)

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await wire.send(b"400000\r\n" + big + b"\r\n0\r\n\r\n")

    async with make_client().request("GET", await upstream(script), "/") as response:
        assert await response.read(1 << 23) == big


async def test_a_body_that_ends_with_the_connection(
    upstream: Upstream, make_client: MakeClient
) -> None:
    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(b"HTTP/1.1 200 OK\r\n\r\nall of ")
        await wire.send(b"it")
        wire.writer.close()

    assert await post(make_client(), await upstream(script)) == b"all of it"


@pytest.mark.parametrize(
    ("answer", "body", "kept"),
    [
        (OK, b"ok", True),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + OK, b"ok", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", b"ok", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok", False),
        (OK + OK, b"ok", False),
        (OK + b"junk", b"ok", False),
    ],
)
async def test_a_connection_is_kept_only_if_all_is_in_order(
    answer: bytes, body: bytes, kept: bool, upstream: Upstream, make_client: MakeClient
) -> None:
    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(answer)
        await wire.rest()

    origin, client = await upstream(script), make_client()
    assert await post(client, origin) == body
    await until(lambda: client.pool(origin).open_connections == kept, "kept or closed")


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
        b"HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000,
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 300 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n" + b"x" * 2_000_000,
    ],
)
async def test_unacceptable_answers(
    answer: bytes, upstream: Upstream, make_client: MakeClient
) -> None:
    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(answer)
        await wire.rest()

    origin, client = await upstream(script), make_client()
    with pytest.raises(UpstreamProtocolError) as failed:
        await post(client, origin)
    assert failed.value.bytes_sent
    await until(lambda: client.pool(origin).open_connections == 0, "the pool forgets it")
