import asyncio

import pytest
from tests.support.fake_engine_link import HealthEndpoint

from contraflow.engine.health import is_healthy


async def test_only_status_200_is_healthy() -> None:
    async with HealthEndpoint().serving() as endpoint:
        assert await is_healthy(endpoint.url, 30.0)
        assert await is_healthy(endpoint.url + "/", 30.0)
        assert not await is_healthy(endpoint.url + "/elsewhere", 30.0)
        endpoint.healthy = False
        assert not await is_healthy(endpoint.url, 30.0)


async def test_nobody_there_is_not_healthy() -> None:
    async with HealthEndpoint().serving() as endpoint:
        url = endpoint.url
    assert not await is_healthy(url, 30.0)


@pytest.mark.parametrize("answer", [b"", b"\r\n", b"HTTP/1.1", b"SSH-2.0 200\r\n", b"x" * 5000])
async def test_what_is_not_http_is_not_healthy(answer: bytes) -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert not await is_healthy(f"http://127.0.0.1:{port}", 30.0)


async def test_silence_is_not_healthy() -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert not await is_healthy(f"http://127.0.0.1:{port}", 0.05)
