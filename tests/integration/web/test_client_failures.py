"""The upstream client: failures, and what they prove of what the upstream has got."""

from __future__ import annotations

import pytest
from tests.integration.web.client_calls import always_ok, post
from tests.integration.web.wire import MakeClient, Upstream, Wire
from tests.support.directory_content import free_address
from tests.support.wait import until

from contraflow.web import Origin, UpstreamConnectError, UpstreamReset, UpstreamTimeout


async def test_no_connection_proves_that_nothing_was_sent(
    upstream: Upstream, make_client: MakeClient
) -> None:
    origin = await upstream(always_ok)
    server_gone = Origin("127.0.0.1", free_address().port)
    with pytest.raises(UpstreamConnectError) as failed:
        await post(make_client(), server_gone)
    assert not failed.value.bytes_sent
    assert str(server_gone) in str(failed.value)
    assert await post(make_client(), origin) == b"ok"


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
