"""One client connection: requests in, one handler task at a time, responses out in order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, cast

from contraflow.web.errors import ApiError, ClientDisconnected
from contraflow.web.limits import ServerLimits
from contraflow.web.request import Request
from contraflow.web.request_reader import ReadState, RequestReader
from contraflow.web.responder import Responder

_JOIN_BELOW = 64 * 1024


class ConnectionOwner(Protocol):
    """What a connection needs of its server."""

    limits: ServerLimits
    draining: bool
    loop: asyncio.AbstractEventLoop
    date: bytes

    def opened(self, connection: ServerConnection) -> bool: ...
    def closed(self, connection: ServerConnection) -> None: ...
    def run(self, request: Request, responder: Responder) -> Coroutine[Any, Any, None]: ...
    def track(self, task: asyncio.Task[None]) -> None: ...


class ServerConnection(asyncio.Protocol):
    """HTTP/1.1 on one transport.

    Reading goes on while a request runs, because that is how a disconnect is noticed; what a
    pipelining client sends meanwhile is kept aside up to a limit. End of file counts as a
    disconnect: no client of an OpenAI API closes its half and waits.
    """

    __slots__ = (
        "_active", "_backlog", "_backlog_bytes", "_body_started", "_deadline", "_discarding",
        "_drained", "_owner", "_peer", "_read_paused", "_reader", "_refusal", "_task", "_transport",
        "_unsent", "_watched", "_write_deadline", "closing", "congested",
    )  # fmt: skip

    def __init__(self, owner: ConnectionOwner) -> None:
        self._owner = owner
        self._reader = RequestReader(owner.limits)
        self._active: Responder | None = None
        self._task: asyncio.Task[None] | None = None
        self._backlog: list[bytes] = []
        self._backlog_bytes = 0
        self._read_paused = False
        self._refusal: ApiError | None = None
        self._discarding = False
        self._watched: ReadState | None = None
        self._deadline: float | None = None
        self._write_deadline: float | None = None
        self._body_started = 0.0
        self._drained: asyncio.Future[None] | None = None
        self._unsent: list[bytes] = []
        self.congested = False
        self.closing = False

    @property
    def date(self) -> bytes:
        """The Date header's value, renewed by the server about once a second."""
        return self._owner.date

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._owner.limits.write_buffer_bytes)
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if isinstance(peer, tuple) else None
        self._deadline = self._owner.loop.time() + self._owner.limits.header_timeout
        self._watched = ReadState.IDLE
        if not self._owner.opened(self):
            self._refuse(ApiError(503, "Too many connections."))

    def data_received(self, data: bytes) -> None:
        if self._discarding or self.closing:
            return
        if self._active is None and not self._reader.ready:
            self._feed(data)
            self._advance()
            return
        self._backlog.append(data)
        self._backlog_bytes += len(data)
        if self._backlog_bytes > self._owner.limits.max_pipelined_bytes and not self._read_paused:
            self._read_paused = True
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        self._owner.closed(self)
        self._reader.close()
        self._end_drain()
        active, task, self._active, self._task = self._active, self._task, None, None
        if active is not None and task is not None:
            active.request_disconnected()
            task.cancel()

    def pause_writing(self) -> None:
        self.congested = True
        self._write_deadline = self._owner.loop.time() + self._owner.limits.write_timeout

    def resume_writing(self) -> None:
        self.congested = False
        self._write_deadline = None
        self._end_drain()

    # The responder's side.

    def hold(self, head: bytes) -> None:
        """Write with what follows in this turn of the event loop, or at its end.

        So a response's headers and first bytes leave in one system call.
        """
        if not self.closing:
            self._owner.loop.call_soon(self._flush)
            self._unsent.append(head)

    def send(self, *parts: bytes) -> None:
        """Write, or drop the bytes if the client is gone."""
        self._unsent.extend(parts)
        self._flush()

    def _flush(self) -> None:
        parts = self._unsent
        if not parts:
            return
        if self.closing or self._transport.is_closing():
            self.closing = True
        elif len(parts) == 1:
            self._transport.write(parts[0])
        elif sum(map(len, parts)) < _JOIN_BELOW:
            self._transport.write(b"".join(parts))
        else:
            self._transport.writelines(parts)
        self._unsent = []

    async def drain(self) -> None:
        """Wait until the client has taken enough."""
        if self.congested and not self.closing:
            self._drained = self._owner.loop.create_future()
            try:
                await self._drained
            finally:
                self._drained = None

    def _end_drain(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def response_finished(self, keep_alive: bool) -> None:
        """The active response is complete; go on with the next request or close."""
        self._active = None
        self._task = None
        self._flush()
        if self.closing:
            return
        if keep_alive and not self._owner.draining:
            self._advance()
        else:
            self._close()

    def abort(self) -> None:
        """Close at once; what the client has not taken is dropped."""
        self._flush()
        self.closing = True
        self._transport.abort()

    # Reading.

    def _feed(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
        except ApiError as refusal:
            self._refusal = refusal

    def _advance(self) -> None:
        """Start the next request, answer a refused one, or wait for more bytes."""
        while self._active is None and not self.closing and not self._discarding:
            if self._reader.ready:
                self._start(self._reader.ready.popleft())
            elif self._refusal is not None:
                self._refuse(self._refusal)
            elif self._backlog:
                data = b"".join(self._backlog)
                self._backlog.clear()
                self._backlog_bytes = 0
                self._feed(data)
            else:
                self._await_bytes()
                return

    def _await_bytes(self) -> None:
        if self._owner.draining and self._reader.state is ReadState.IDLE:
            self._close()
            return
        self._resume_reading()
        self._watch()
        if self._reader.wants_continue and self._reader.received == 0:
            self._reader.wants_continue = False
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _resume_reading(self) -> None:
        if self._read_paused and not self._transport.is_closing():
            self._read_paused = False
            self._transport.resume_reading()

    def _watch(self) -> None:
        """Set the deadline of what is being waited for."""
        limits, state, now = self._owner.limits, self._reader.state, self._owner.loop.time()
        changed = state is not self._watched
        self._watched = state
        if state is ReadState.BODY:
            if changed:
                self._body_started = now
            earned = self._reader.received / limits.body_min_rate
            at_rate = self._body_started + limits.body_timeout + earned
            self._deadline = min(now + limits.body_timeout, at_rate)
        elif changed:
            head = state is ReadState.HEAD
            self._deadline = now + (limits.header_timeout if head else limits.idle_timeout)

    def check(self, now: float) -> None:
        """Called by the server now and then: act on deadlines that have passed."""
        if self._write_deadline is not None and now >= self._write_deadline:
            self.abort()
        elif self._active is None and self._deadline is not None and now >= self._deadline:
            if self._discarding or self.closing:
                self.abort()
            elif self._reader.state is ReadState.IDLE:
                self._close()
            else:
                self._refuse(ApiError(408, "The request did not arrive in time."))

    # Answering.

    def _start(self, request: Request) -> None:
        self._watched = None
        request.peer = self._peer
        responder = Responder(self, request, request.keep_alive and not self._owner.draining)
        self._active = responder
        self._task = self._owner.loop.create_task(self._owner.run(request, responder))
        self._owner.track(self._task)

    def _refuse(self, error: ApiError) -> None:
        """Answer a request that could not be read, and end the connection."""
        self._refusal = None
        self._discarding = True
        Responder(self, Request("", "", "", []), keep_alive=False).send_error(error)

    def _close(self) -> None:
        """Close once everything written has gone out.

        Closing with unread bytes would reset the connection and could destroy the response on its
        way, so after a refusal the rest is read and dropped for a while.
        """
        if not (self._discarding or self._backlog or self._reader.ready):
            self.closing = True
            self._deadline = self._owner.loop.time() + self._owner.limits.write_timeout
            self._transport.close()
            return
        self._discarding = True
        self._deadline = self._owner.loop.time() + self._owner.limits.linger
        self._resume_reading()
        if not self._transport.is_closing():
            self._transport.write_eof()

    @property
    def idle(self) -> bool:
        """Between two requests, with nothing of the next one received."""
        return self._active is None and self._watched is ReadState.IDLE

    def close_if_idle(self) -> None:
        """For a shutdown: nothing is lost by closing an idle connection."""
        if self.idle and not self._discarding:
            self._close()


async def run_handler(handler: Any, request: Request, responder: Responder, log: Any) -> None:
    """Run a handler and answer for what it leaves undone."""
    try:
        await handler(request, responder)
        if not responder.finished:
            raise RuntimeError("the handler ended without finishing its response")
    except asyncio.CancelledError:
        _cut(responder)
        raise
    except ClientDisconnected:
        _cut(responder)
    except ApiError as error:
        if responder.started:
            _cut(responder)
        else:
            responder.send_error(error)
    except Exception:
        log.exception("http.handler_failed", request_id=request.id, path=request.path)
        if responder.started:
            _cut(responder)
        else:
            message = f"Internal error; the request id is {request.id}."
            responder.send_error(ApiError(500, message))


def _cut(responder: Responder) -> None:
    if not responder.finished:
        responder.abort()
