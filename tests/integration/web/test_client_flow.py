"""The upstream client: back-pressure, leaving early, pumping."""

from __future__ import annotations

import asyncio

import pytest
from tests.integration.web.client_calls import post
from tests.integration.web.wire import MakeClient, Upstream, Wire
from tests.support.wait import until

from contraflow.web import UpstreamReset, UpstreamTimeout


async def test_an_unread_response_stops_the_upstream(
    upstream: Upstream, make_client: MakeClient
) -> None:
    total = 30_000_000
    done = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        for _ in range(300):
            await wire.send(b"x" * 100_000)
        done.set()

    client = make_client(read_buffer_bytes=50_000)
    async with client.request("GET", await upstream(script), "/") as response:
        await until(lambda: response._connection.paused, "reading pauses")
        assert response.buffered < 50_000 + 300_000
        assert not done.is_set()
        assert len(await response.read(total)) == total


async def test_leaving_early_closes_the_connection_at_once(
    upstream: Upstream, make_client: MakeClient
) -> None:
    closed = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        assert await wire.rest() == b""
        closed.set()

    origin, client = await upstream(script), make_client()
    async with client.request("POST", origin, "/") as response:
        assert await response.read_chunk() == b"one"
    await until(closed.is_set, "the upstream sees it")
    await until(lambda: client.pool(origin).open_connections == 0, "the pool forgets it")


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"])
async def test_cancelling_closes_the_connection_at_once(
    head: bytes, upstream: Upstream, make_client: MakeClient
) -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(head)
        asked.set()
        assert await wire.rest() == b""
        closed.set()

    origin, client = await upstream(script), make_client()
    task = asyncio.create_task(post(client, origin))
    await asked.wait()
    task.cancel()
    await until(closed.is_set, "the upstream sees it")
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_pumping(upstream: Upstream, make_client: MakeClient) -> None:
    steps = [asyncio.Event() for _ in range(4)]

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        for step, data in zip(steps, (b"b", b"c", b"d", b"e"), strict=True):
            await step.wait()
            end = b"0\r\n\r\n" if data == b"e" else b""
            await wire.send(b"1\r\n" + data + b"\r\n" + end)

    taken: list[bytes] = []
    drained: list[list[bytes]] = []

    def consume(data: bytes) -> bool:
        taken.append(data)
        steps[len(taken) - 1].set()
        return data not in (b"a", b"c")

    async def drain() -> None:
        drained.append(list(taken))

    origin, client = await upstream(script), make_client()
    async with client.request("GET", origin, "/", chunk_timeout=20) as response:
        assert await response.pump(consume, drain) == b"e"
    assert taken == [b"a", b"b", b"c", b"d"]
    assert [seen[-1] for seen in drained] == [b"a", b"c"]
    assert client.pool(origin).idle_connections == 1


async def test_pumping_into_a_failing_consumer(upstream: Upstream, make_client: MakeClient) -> None:
    more, closed = asyncio.Event(), asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\na")
        await more.wait()
        await wire.send(b"b")
        assert await wire.rest() == b""
        closed.set()

    def consume(data: bytes) -> bool:
        more.set()
        if data == b"b":
            raise RuntimeError("full")
        return True

    async def drain() -> None:
        raise AssertionError("nothing to drain")

    origin = await upstream(script)
    with pytest.raises(RuntimeError, match="full"):
        async with make_client().request("GET", origin, "/") as response:
            await response.pump(consume, drain)
    await until(closed.is_set, "the upstream sees it")


@pytest.mark.parametrize("ending", ["close", "silence"])
async def test_pumping_from_a_failing_upstream(
    ending: str, upstream: Upstream, make_client: MakeClient
) -> None:
    more = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\na")
        await more.wait()
        await wire.send(b"b")
        if ending == "close":
            wire.writer.close()
        await wire.rest()

    taken: list[bytes] = []

    def consume(data: bytes) -> bool:
        taken.append(data)
        more.set()
        return True

    async def drain() -> None:
        raise AssertionError("nothing to drain")

    async with make_client().request("GET", await upstream(script), "/", chunk_timeout=0.5) as got:
        with pytest.raises((UpstreamReset, UpstreamTimeout)) as failed:
            await got.pump(consume, drain)
    assert isinstance(failed.value, UpstreamReset) == (ending == "close")
    assert b"".join(taken) == b"ab"
