"""gRPC between parts without sockets: the generated stubs and servicers on both ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, cast

import grpc
from grpc.aio import AioRpcError, Metadata

from contraflow.core.errors import ContraflowError
from contraflow.runtime.grpc_errors import DETAILS_KEY, STATUS_CODES, CallFailed, to_status
from contraflow.verify.net import Net, Part

_BLACK_HOLE_SECONDS = 20.0  # what TCP takes to notice, where no deadline is set

_TRIED_ONCE = frozenset({
    "/contraflow.v1.DirectoryService/PublishSessions",
    "/contraflow.v1.AgentService/DrainEngine",
})  # fmt: skip
"""gRPC carries out a call at most once: copies are made by clients that try again, elsewhere or
later, which of these nobody does. A copy that came after the answer would undo what was published,
withdrawn or ordered since."""


class Server:
    """Serves servicers at an address, as part of a process. Give it to ``add_…_to_server``."""

    def __init__(self, part: Part, on_defect: Callable[[str, Exception], None]) -> None:
        self.part = part
        self._methods: dict[str, Any] = {}
        self._on_defect = on_defect

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """As grpc.aio.Server; the other form of registration is all that is needed."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        """As grpc.aio.Server."""
        for name, handler in handlers.items():
            behaviour = handler.unary_unary or handler.unary_stream
            self._methods[f"/{service}/{name}"] = behaviour

    async def answer(
        self, method: str, request: Any, deadline: float | None, metadata: Any = ()
    ) -> Any:
        """A unary call; raises AioRpcError as a client would see it."""
        try:
            return await self._methods[method](request, _Context(deadline, metadata))
        except Exception as error:
            raise self._error(method, error) from error

    async def stream(self, method: str, request: Any) -> AsyncIterator[Any]:
        """A call with a stream of answers."""
        try:
            async with aclosing(self._methods[method](request, _Context(None, ()))) as answers:
                async for answer in answers:
                    yield answer
        except Exception as error:
            raise self._error(method, error) from error

    def _error(self, method: str, error: Exception) -> AioRpcError:
        if not isinstance(error, ContraflowError) or isinstance(error, CallFailed):
            self._on_defect(method, error)
            return rpc_error(grpc.StatusCode.INTERNAL, "internal error")
        status = to_status(error)
        details = Metadata((DETAILS_KEY, status.SerializeToString()))
        return AioRpcError(STATUS_CODES[error.reason], Metadata(), details, str(error))


class _Context:
    def __init__(self, deadline: float | None, metadata: Any) -> None:
        self._deadline = deadline
        self._metadata = metadata

    def invocation_metadata(self) -> Any:
        return self._metadata

    def time_remaining(self) -> float | None:
        if self._deadline is None:
            return None
        return max(0.0, self._deadline - asyncio.get_running_loop().time())


class Channel:
    """As far as stubs use grpc.aio.Channel. ``part`` is the caller's process."""

    def __init__(self, net: Net, part: Part, target: str) -> None:
        self._net = net
        self._part = part
        self._target = target

    def unary_unary(self, method: str, **_: Any) -> Callable[..., Any]:
        """What stubs make their methods of."""
        return partial(self._call, method)

    def unary_stream(self, method: str, **_: Any) -> Callable[..., Any]:
        """What stubs make their methods of."""
        return partial(_StreamCall, self._net, self._part, self._target, method)

    async def close(self) -> None:
        """Nothing is held."""

    async def _call(
        self, method: str, request: Any, *, timeout: float | None = None, metadata: Any = (),
        **_: Any,
    ) -> Any:  # fmt: skip
        try:
            async with asyncio.timeout(timeout):
                return await self._exchange(method, request, timeout, metadata)
        except TimeoutError:
            raise rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded") from None

    async def _exchange(
        self, method: str, request: Any, timeout: float | None, metadata: Any
    ) -> Any:
        net, weather = self._net, self._net.weather
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        server: Server | None = net.reach(self._part.name, self._target)
        await net.travel(self._part.name, server.part.name if server else "")
        server = net.reach(self._part.name, self._target)
        if server is None or not self._part.alive:
            raise _unreachable()
        if net.happens(weather.lose / 2, "REQUEST_LOST"):
            await _lose(net)
        request = type(request).FromString(request.SerializeToString())
        if method not in _TRIED_ONCE and net.happens(weather.repeat, "REQUEST_REPEATED"):
            server.part.spawn(_ignore(self._repeat(server, method, request)))
        task = server.part.spawn(server.answer(method, request, deadline, metadata))
        try:
            answer = await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is None or current.cancelling():
                raise
            raise _unreachable() from None  # the server has died
        if net.happens(weather.lose / 2, "ANSWER_LOST"):
            await _lose(net)
        await net.travel(self._part.name, server.part.name)
        if net.reach(self._part.name, self._target) is not server:
            raise _unreachable()
        return answer

    async def _repeat(self, server: Server, method: str, request: Any) -> None:
        await self._net.travel(server.part.name)
        await server.answer(method, request, None)


class _StreamCall:
    """The answers of a call, until it is cancelled, breaks, or its server dies."""

    def __init__(self, net: Net, part: Part, target: str, method: str, request: Any, **_: Any):
        self._net = net
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        server: Server | None = net.reach(part.name, target)
        self._names = (part.name, target)
        self._server = server
        if server is None:
            self._queue.put_nowait(_unreachable())
            return
        self._task = server.part.spawn(self._pump(server, method, request))
        self._task.add_done_callback(lambda _: self._queue.put_nowait(_unreachable()))

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._read()

    def cancel(self) -> None:
        """Hang up."""
        if self._server is not None:
            self._task.cancel()

    async def _read(self) -> AsyncIterator[Any]:
        while True:
            item = await self._queue.get()
            if isinstance(item, AioRpcError):
                raise item
            yield item

    async def _pump(self, server: Server, method: str, request: Any) -> None:
        net = self._net
        try:
            async for answer in server.stream(method, request):
                await net.travel(self._names[0], server.part.name)
                broken = net.happens(net.weather.break_stream, "STREAM_BROKEN")
                if broken or net.reach(*self._names) is not server:
                    return
                self._queue.put_nowait(answer)
        except AioRpcError as error:
            self._queue.put_nowait(error)


def dial(net: Net, part: Part, target: str) -> grpc.aio.Channel:
    """A channel as stubs take it."""
    return cast(grpc.aio.Channel, Channel(net, part, target))


def rpc_error(code: grpc.StatusCode, message: str) -> AioRpcError:
    """A failure of the call itself."""
    return AioRpcError(code, Metadata(), Metadata(), message)


def _unreachable() -> AioRpcError:
    return rpc_error(grpc.StatusCode.UNAVAILABLE, "nobody answers there")


async def _lose(net: Net) -> None:
    if net.random.random() < 0.5:
        await asyncio.sleep(_BLACK_HOLE_SECONDS)
    raise _unreachable()


async def _ignore(work: Any) -> None:
    with suppress(AioRpcError):
        await work
