"""The upstream client: reuse, failures and what they prove, back-pressure, cancellation."""

from __future__ import annotations

import asyncio

import pytest
from tests.integration.web.wire import MakeClient, Serve, Upstream, Wire
from tests.support.wait import until

from contraflow.web import (
    Origin,
    Request,
    Responder,
    UpstreamClient,
    UpstreamConnectError,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamReset,
    UpstreamTimeout,
)

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def post(client: UpstreamClient, origin: Origin, body: bytes = b"{}") -> bytes:
    async with client.request("POST", origin, "/v1/x", body=body) as response:
        return await response.read(1 << 20)


async def always_ok(wire: Wire) -> None:
    while True:
        await wire.request()
        await wire.send(OK)


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


async def test_no_connection_proves_that_nothing_was_sent(
    upstream: Upstream, make_client: MakeClient
) -> None:
    origin = await upstream(always_ok)
    server_gone = Origin("127.0.0.1", _unused_port())
    with pytest.raises(UpstreamConnectError) as failed:
        await post(make_client(), server_gone)
    assert not failed.value.bytes_sent
    assert str(server_gone) in str(failed.value)
    assert await post(make_client(), origin) == b"ok"


def _unused_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_a_silent_upstream_times_out(upstream: Upstream, make_client: MakeClient) -> None:
    async def script(wire: Wire) -> None:
        await wire.request()
        assert await wire.rest() == b""

    client = make_client()
    with pytest.raises(UpstreamTimeout) as failed:
        async with client.request("POST", await upstream(script), "/", header_timeout=0.05):
            pass
    assert failed.value.phase == "headers"
    assert failed.value.bytes_sent
    assert not failed.value.response_started


async def test_a_stalled_body_times_out_only_if_asked(
    upstream: Upstream, make_client: MakeClient
) -> None:
    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
        assert await wire.rest() == b""

    origin = await upstream(script)
    async with make_client().request("GET", origin, "/", chunk_timeout=0.05) as response:
        assert await response.read_chunk() == b"abc"
        with pytest.raises(UpstreamTimeout) as failed:
            await response.read_chunk()
    assert failed.value.phase == "body"
    assert failed.value.response_started


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


@pytest.mark.parametrize(
    ("sent", "started"),
    [
        (b"", False),
        (b"HTTP/1.1 200 OK\r\nConte", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", True),
    ],
)
async def test_a_truncated_response(
    sent: bytes, started: bool, upstream: Upstream, make_client: MakeClient
) -> None:
    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(sent)
        wire.writer.close()

    origin, client = await upstream(script), make_client()
    with pytest.raises(UpstreamReset) as failed:
        await post(client, origin)
    error = failed.value
    assert (error.bytes_sent, error.response_started, error.reused) == (True, started, False)
    await until(lambda: client.pool(origin).open_connections == 0, "the pool forgets it")


async def test_bytes_before_a_truncation_are_delivered(
    upstream: Upstream, make_client: MakeClient
) -> None:
    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
        wire.writer.close()

    async with make_client().request("GET", await upstream(script), "/") as response:
        await until(lambda: response._error is not None, "the reset is seen")
        assert await response.read_chunk() == b"abc"
        with pytest.raises(UpstreamReset):
            await response.read_chunk()


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


async def test_a_body_that_ends_with_the_connection(
    upstream: Upstream, make_client: MakeClient
) -> None:
    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(b"HTTP/1.1 200 OK\r\n\r\nall of ")
        await wire.send(b"it")
        wire.writer.close()

    assert await post(make_client(), await upstream(script)) == b"all of it"


async def test_head_requests(upstream: Upstream, make_client: MakeClient) -> None:
    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n")

    async with make_client().request("HEAD", await upstream(script), "/") as response:
        assert response.header(b"content-length") == b"99"
        assert await response.read(10) == b""


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
    assert client.pool(origin).open_connections == 0 or await _drained(client, origin)


async def _drained(client: UpstreamClient, origin: Origin) -> bool:
    await until(lambda: client.pool(origin).open_connections == 0, "the pool is empty")
    return True


async def test_a_failed_connect_gives_its_place_to_the_next(make_client: MakeClient) -> None:
    client, nobody = make_client(max_connections=1), Origin("127.0.0.1", _unused_port())
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


async def test_scenario_14_ipv6_upstream(serve: Serve, make_client: MakeClient) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        responder.respond(200, [], request.header(b"host") or b"")

    try:
        server = await serve(handler, host="::1")
    except Exception:
        pytest.skip("no IPv6 loopback here")
    origin = Origin.parse(f"http://[::1]:{server.port}")
    assert await post(make_client(), origin) == f"[::1]:{server.port}".encode()
