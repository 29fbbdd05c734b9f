"""HTTP between routers and engines without sockets: the handler of the one in the client of
the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any

import msgspec

from contraflow.core.fleet import Role
from contraflow.verify.legs import TRACE, Fate, Leg
from contraflow.verify.net import Net, Part
from contraflow.web import ApiError, ClientDisconnected, Origin, Request
from contraflow.web.headers import Headers, find_header
from contraflow.web.upstream_errors import (
    UpstreamConnectError,
    UpstreamProtocolError,
    UpstreamReset,
    UpstreamTimeout,
)

Handler = Callable[[Request, Any], Awaitable[None]]
_END = None
_encoder = msgspec.json.Encoder()


class Endpoint:
    """What answers requests at an origin, as part of a process."""

    def __init__(self, part: Part, handler: Handler) -> None:
        self.part = part
        self.handler = handler


class Answer:
    """The server's responder and the client's response in one."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = ()
        self.started = False
        self.finished = False
        self.reused = False
        self.leg: Leg | None = None
        """What is told of how it comes."""
        self._pieces: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self._headers_there = asyncio.Event()
        self.over = False
        self.origin = Origin("", 0)

    # The server's side, as web.Responder.

    def respond(self, status: int, headers: Headers = (), body: bytes = b"") -> None:
        """A whole response."""
        self.start(status, headers)
        self.finish(body)

    def send_json(self, status: int, value: object, headers: Headers = ()) -> None:
        """A value as JSON."""
        body = value if isinstance(value, bytes) else _encoder.encode(value)
        self.respond(status, [(b"content-type", b"application/json"), *headers], body)

    def start(self, status: int, headers: Headers = ()) -> None:
        """Status and headers."""
        if self.started:
            raise RuntimeError("the response has already started")
        self.started = True
        self.status = status
        self.headers = headers
        self._headers_there.set()

    async def write(self, data: bytes) -> None:
        """Some of the body."""
        if self.finished:
            raise ClientDisconnected("the client is gone")
        if data:
            self._pieces.put_nowait(data)

    def finish(self, data: bytes = b"") -> None:
        """The end of the body."""
        if data:
            self._pieces.put_nowait(data)
        self.finished = True
        self._pieces.put_nowait(_END)

    def abort(self) -> None:
        """Cut it off."""
        self.fail()

    def fail(self) -> None:
        """The connection is gone before the end."""
        if not self.finished:
            self.finished = True
            self._headers_there.set()
            self._pieces.put_nowait(
                UpstreamReset(
                    self.origin, "closed", bytes_sent=True, response_started=self.started,
                    reused=self.reused,
                )
            )  # fmt: skip

    # The client's side, as web.UpstreamResponse.

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header, or None."""
        return find_header(self.headers, name)

    async def wait_for_headers(self, timeout: float) -> None:
        """Return once they are there, else raise."""
        try:
            async with asyncio.timeout(timeout):
                await self._headers_there.wait()
        except TimeoutError:
            if self.leg is not None:
                self.leg.fate = Fate.SILENT
            raise UpstreamTimeout(
                self.origin, "headers", bytes_sent=True, reused=self.reused
            ) from None
        if not self.started:
            raise UpstreamReset(self.origin, "closed", bytes_sent=True, reused=self.reused)
        if self.leg is not None:
            self.leg.started = True

    async def iter_raw(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        while not self.over:
            piece = await self._pieces.get()
            if isinstance(piece, Exception):
                raise piece
            if piece is _END:
                self.over = True
                if self.leg is not None:
                    self.leg.ended(self.status)
            else:
                if self.leg is not None:
                    self.leg.read(piece)
                yield piece

    async def read(self, limit: int) -> bytes:
        """The whole body."""
        body = b"".join([piece async for piece in self.iter_raw()])
        if len(body) > limit:
            raise UpstreamProtocolError(self.origin, "the body is too long", bytes_sent=True)
        return body


class Client:
    """As far as a router uses web.UpstreamClient. ``part`` is the router's process."""

    def __init__(self, net: Net, part: Part, header_timeout: float) -> None:
        self._net = net
        self._part = part
        self._header_timeout = header_timeout
        self._idle: set[str] = set()
        """Origins to which a connection is kept."""

    def request(
        self,
        method: str,
        origin: Origin,
        path: str,
        *,
        headers: Headers = (),
        body: bytes | Sequence[bytes] = b"",
        header_timeout: float | None = None,
    ) -> Exchange:
        """Prepare a request; it is sent when the returned context is entered."""
        whole = body if isinstance(body, bytes) else b"".join(body)
        if self._net.weather.drift:
            whole = self._drifted(whole)
        request = Request(method, path, "", list(headers), body=whole)
        timeout = self._header_timeout if header_timeout is None else header_timeout
        return Exchange(self._net, self._part, origin, request, timeout, self._idle)

    def close(self) -> None:
        """Nothing is held."""

    def _drifted(self, body: bytes) -> bytes:
        # As where two versions of a template render the same history.
        fields = msgspec.json.decode(body)
        prompt, params = fields.get("prompt"), fields.get("kv_transfer_params") or {}
        if not (isinstance(prompt, list) and params.get("do_remote_prefill")):
            return body
        net = self._net
        if net.happens(net.weather.drift, "PROMPT_DRIFT"):
            at = net.random.randrange(len(prompt))
            prompt[at] ^= 1
        return _encoder.encode(fields)


class Exchange:
    """One request and its response, as an async context."""

    def __init__(
        self,
        net: Net,
        part: Part,
        origin: Origin,
        request: Request,
        timeout: float,
        idle: set[str],
    ) -> None:
        self.sent = False
        self._net = net
        self._part = part
        self._origin = origin
        self._request = request
        self._timeout = timeout
        self._answer = Answer()
        self._answer.origin = origin
        self._idle = idle
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Answer:
        net, answer, name = self._net, self._answer, str(self._origin)
        answer.reused = name in self._idle
        self._idle.discard(name)
        if trace := TRACE.get():
            role = Role(net.listeners[name].part.name.partition("-")[0])
            answer.leg = trace.begin(role, name, self._request.body, reused=answer.reused)
        endpoint: Endpoint | None = net.reach(self._part.name, name)
        await net.travel(self._part.name, endpoint.part.name if endpoint else "")
        endpoint = net.reach(self._part.name, name)
        if endpoint is None or not self._part.alive:
            if answer.leg is not None:
                answer.leg.fate = Fate.REFUSED
            raise UpstreamConnectError(self._origin, "refused")
        self.sent = True
        if answer.leg is not None:
            answer.leg.sent = True
        if net.happens(net.weather.reset / 4, "HTTP_REQUEST_LOST"):
            raise UpstreamReset(self._origin, "closed", bytes_sent=True, reused=answer.reused)
        self._task = endpoint.part.spawn(self._serve(endpoint))
        self._task.add_done_callback(lambda _: answer.fail())
        if net.happens(net.weather.reset * 3 / 4, "HTTP_RESET"):
            asyncio.get_running_loop().call_later(net.random.random() ** 4 * 5.0, self._reset)
        try:
            await answer.wait_for_headers(self._timeout)
        except BaseException:
            self._leave()
            raise
        return answer

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None and self._answer.over:
            self._idle.add(str(self._origin))
        self._leave()

    def _leave(self) -> None:
        if self._task is not None and not self._task.done():
            self._request.mark_disconnected()
            self._task.cancel()

    def _reset(self) -> None:
        self._answer.fail()
        self._leave()

    async def _serve(self, endpoint: Endpoint) -> None:
        answer = self._answer
        try:
            await endpoint.handler(self._request, answer)
        except ApiError as error:
            if not answer.started:
                answer.send_json(error.status, error.body(), error.headers)
