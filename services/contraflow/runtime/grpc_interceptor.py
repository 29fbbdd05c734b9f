"""The interceptor that turns exceptions of async handlers into statuses."""

from __future__ import annotations

import asyncio
import inspect
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NoReturn

import grpc
import structlog
from google.protobuf.message import DecodeError

from contraflow.core.errors import ContraflowError, Internal, InvalidArgument
from contraflow.runtime.grpc_errors import DETAILS_KEY, STATUS_CODES, CallFailed, to_status

log = structlog.get_logger()

Context = grpc.aio.ServicerContext[Any, Any]
Handler = Callable[[Any, Context], Any]


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """A domain error becomes its status and details; anything else INTERNAL with a request
    id, under which the cause is logged. Cancellation and ``context.abort`` pass. An error that
    the caller did not wait for is a line in the log, and the call counts as cancelled."""

    def __init__(self, new_request_id: Callable[[], str] = lambda: uuid.uuid4().hex) -> None:
        self._new_request_id = new_request_id

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wrap the one behaviour that the handler has."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        kind = _kind(handler)
        behaviour = getattr(handler, kind)
        wrapped = self._wrap(behaviour, str(handler_call_details.method))
        if wrapped is behaviour:
            return handler
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        rewrapped: grpc.RpcMethodHandler[Any, Any] = make(
            wrapped, _reader(handler.request_deserializer), handler.response_serializer
        )
        return rewrapped

    def _wrap(self, behaviour: Handler, method: str) -> Handler:
        async def respond(request: Any, context: Context) -> Any:
            try:
                return await behaviour(_checked(request), context)
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                await self._abort(error, method, context)

        async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
            try:
                # Closed here and now when the caller leaves, not by the garbage collector.
                async with aclosing(behaviour(_checked(request), context)) as responses:
                    async for response in responses:
                        yield response
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                await self._abort(error, method, context)

        if inspect.isasyncgenfunction(behaviour):
            return stream
        return respond if inspect.iscoroutinefunction(behaviour) else behaviour

    async def _abort(self, error: Exception, method: str, context: Context) -> NoReturn:
        if not isinstance(error, ContraflowError) or isinstance(error, CallFailed):
            request_id = self._new_request_id()
            log.error("request_failed", method=method, request_id=request_id, exc_info=error)
            error = Internal("internal error", request_id=request_id)
        status = to_status(error)
        try:
            await context.abort(
                STATUS_CODES[error.reason],
                status.message,
                ((DETAILS_KEY, status.SerializeToString()),),
            )
        except grpc.aio.InternalError:
            log.info("caller_left", method=method, reason=error.reason, error=status.message)
            raise asyncio.CancelledError from None


class _Unreadable:
    """In place of a request that is no message: gRPC itself would answer UNKNOWN, and log a
    stack for what is the caller's mistake."""


def _reader(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    if deserialize is None:
        return None

    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            return _Unreadable()

    return read


def _checked(request: Any) -> Any:
    """A request, or the stream of them, that raises InvalidArgument where it is no message."""
    if isinstance(request, _Unreadable):
        raise InvalidArgument("the request is not a message that this method takes")
    return _each_checked(request) if isinstance(request, AsyncIterator) else request


async def _each_checked(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        yield _checked(request)


def without_trace(record: logging.LogRecord) -> bool:
    """A filter for gRPC's own logger: an answer that can not be sent any more, because its
    caller left in that moment, is nothing to show a stack for."""
    if record.exc_info and isinstance(record.exc_info[1], grpc.aio.InternalError):
        record.exc_info = None
    return True


def _kind(handler: grpc.RpcMethodHandler[Any, Any]) -> str:
    request = "stream" if handler.request_streaming else "unary"
    response = "stream" if handler.response_streaming else "unary"
    return f"{request}_{response}"
