"""What the server does with clients that leave, or do not read."""

from __future__ import annotations

import asyncio

from tests.integration.web.server_calls import GET, only_connection
from tests.integration.web.wire import Dial, Serve
from tests.support.wait import until

from contraflow.web import Request, Responder


async def test_a_disconnect_cancels_the_handler(serve: Serve, dial: Dial) -> None:
    events: list[str] = []

    async def handler(request: Request, responder: Responder) -> None:
        request.on_disconnect(lambda: events.append("callback"))
        events.append("started")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            events.append(f"cancelled, disconnected={request.disconnected}")
            raise

    wire = await dial(await serve(handler))
    await wire.send(GET)
    await until(lambda: events == ["started"], "the handler runs")
    wire.abort()
    expected = ["started", "callback", "cancelled, disconnected=True"]
    await until(lambda: events == expected, "the handler is cancelled")


async def test_a_disconnect_behind_a_pipelined_request_cancels_too(
    serve: Serve, dial: Dial
) -> None:
    cancelled = asyncio.Event()
    started = asyncio.Event()

    async def handler(request: Request, responder: Responder) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    wire = await dial(await serve(handler))
    await wire.send(GET + GET)
    await started.wait()
    await wire.send(GET)
    wire.writer.write_eof()
    await until(cancelled.is_set, "the handler is cancelled")


async def test_after_its_response_a_handler_is_left_in_peace(serve: Serve, dial: Dial) -> None:
    gate = asyncio.Event()
    done: list[str] = []

    async def handler(request: Request, responder: Responder) -> None:
        responder.respond(200, [], b"x")
        await gate.wait()
        done.append(request.path)

    server = await serve(handler)
    wire = await dial(server)
    await wire.send(GET)
    assert (await wire.answer()).body == b"x"
    await wire.send(GET)
    assert (await wire.answer()).body == b"x"
    wire.abort()
    await until(lambda: server.connections == 0, "the disconnect is seen")
    gate.set()
    await until(lambda: done == ["/a", "/a"], "both handlers end by themselves")


async def test_a_slow_reader_stops_the_writer(serve: Serve, dial: Dial) -> None:
    written = 0
    progress = asyncio.Event()

    async def handler(request: Request, responder: Responder) -> None:
        nonlocal written
        responder.start(200, [])
        for _ in range(400):
            await responder.write(b"x" * 100_000)
            written += 1
            progress.set()
        responder.finish()

    server = await serve(handler)
    wire = await dial(server)
    wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await wire.send(GET)
    connection = await only_connection(server)
    await until(lambda: connection.congested and connection._drained is not None, "it waits")
    assert written < 400
    assert connection._transport.get_write_buffer_size() < 300_000
    wire.writer.transport.resume_reading()  # type: ignore[attr-defined]
    assert len((await wire.answer()).body) == 40_000_000
    assert written == 400


async def test_a_client_that_takes_nothing_is_cut_off(serve: Serve, dial: Dial) -> None:
    ended: list[str] = []

    async def handler(request: Request, responder: Responder) -> None:
        responder.start(200, [])
        try:
            while True:
                await responder.write(b"x" * 100_000)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    wire = await dial(await serve(handler, write_timeout=0.05))
    wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await wire.send(GET)
    await until(lambda: ended == ["cancelled"], "the write timeout")
