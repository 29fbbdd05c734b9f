"""The upstream client: connections kept, expired, waited for and closed."""

from __future__ import annotations

import asyncio

import pytest
from tests.integration.web.client_calls import OK, always_ok, post
from tests.integration.web.wire import MakeClient, Upstream, Wire
from tests.support.directory_content import free_address
from tests.support.wait import until

from contraflow.web import (
    Origin,
    UpstreamConnectError,
    UpstreamError,
    UpstreamReset,
    UpstreamTimeout,
)


async def test_an_idle_connection_that_the_upstream_closed_is_not_used(
    upstream: Upstream, make_client: MakeClient
) -> None:
    served = []

    async def script(wire: Wire) -> None:
        await wire.request()
        served.append(wire)
        await wire.send(OK)

    origin, client = await upstream(script), make_client()
    assert await post(client, origin) == b"ok"
    connection = client.pool(origin)._idle[0]
    served[0].writer.transport.abort()
    await until(lambda: not connection.quiet(), "the kernel knows")
    assert await post(client, origin) == b"ok"
    assert len(served) == 2


async def test_a_reused_connection_that_dies_is_no_proof_for_a_post(
    upstream: Upstream, make_client: MakeClient
) -> None:
    served = 0

    async def script(wire: Wire) -> None:
        nonlocal served
        for answer in (OK, b""):
            await wire.request()
            served += 1
            await wire.send(answer)
        wire.abort()

    origin, client = await upstream(script), make_client()
    assert await post(client, origin) == b"ok"
    with pytest.raises(UpstreamReset) as failed:
        await post(client, origin)
    error = failed.value
    assert (error.bytes_sent, error.response_started, error.reused) == (True, False, True)
    assert served == 2
    assert await post(client, origin) == b"ok"
    async with client.request("GET", origin, "/") as response:
        assert await response.read(10) == b"ok"
    assert served == 5


async def test_idle_connections_expire(upstream: Upstream, make_client: MakeClient) -> None:
    origin, client = await upstream(always_ok), make_client(idle_timeout=0.05)
    assert await post(client, origin) == b"ok"
    await until(lambda: client.pool(origin).open_connections == 0, "it expires")
    assert await post(client, origin) == b"ok"


async def test_the_cap_makes_requests_wait_for_each_other(
    upstream: Upstream, make_client: MakeClient
) -> None:
    gate = asyncio.Event()
    wires = []

    async def script(wire: Wire) -> None:
        wires.append(wire)
        while True:
            await wire.request()
            await gate.wait()
            await wire.send(OK)

    origin, client = await upstream(script), make_client(max_connections=2)
    tasks = [asyncio.create_task(post(client, origin)) for _ in range(6)]
    await until(lambda: len(client.pool(origin)._waiters) == 4, "four wait")
    tasks[5].cancel()
    gate.set()
    assert await asyncio.gather(*tasks[:5]) == [b"ok"] * 5
    assert len(wires) == 2
    assert client.pool(origin).open_connections == 2


async def test_waiting_for_the_pool_is_bounded_and_proves_that_nothing_was_sent(
    upstream: Upstream, make_client: MakeClient
) -> None:
    async def script(wire: Wire) -> None:
        await wire.rest()

    origin = await upstream(script)
    client = make_client(max_connections=1, pool_timeout=0.05)
    first = asyncio.create_task(post(client, origin))
    await until(lambda: client.pool(origin).open_connections == 1, "the first is out")
    with pytest.raises(UpstreamTimeout) as failed:
        await post(client, origin)
    assert failed.value.phase == "pool"
    assert not failed.value.bytes_sent
    first.cancel()
    await asyncio.wait([first])
    await until(lambda: client.pool(origin).open_connections == 0, "the pool is empty")


async def test_a_failed_connect_gives_its_place_to_the_next(make_client: MakeClient) -> None:
    client, nobody = make_client(max_connections=1), Origin("127.0.0.1", free_address().port)
    results = await asyncio.gather(
        *[post(client, nobody) for _ in range(5)], return_exceptions=True
    )
    assert [type(result) for result in results] == [UpstreamConnectError] * 5
    assert client.pool(nobody).open_connections == 0


async def test_closing_the_client_ends_everything(
    upstream: Upstream, make_client: MakeClient
) -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        asked.set()
        assert await wire.rest() == b""
        closed.set()

    origin, client = await upstream(script), make_client(max_connections=1)
    tasks = [asyncio.create_task(post(client, origin)) for _ in range(2)]
    await asked.wait()
    client.close()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, UpstreamError) for result in results)
    await until(closed.is_set, "the upstream sees it")
