"""One stream of one engine: what is said on it, and which answer belongs to which call."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Callable

import structlog

from contraflow.core.errors import ContraflowError, EngineNotAttached, EngineUnresponsive
from contraflow.v1 import engine_link_service_pb2 as pb
from contraflow.v1 import handle_pb2

log = structlog.get_logger()

MAX_CALLS = 1024
"""Calls without an answer at which further ones are refused: the engine has stalled."""

Answer = pb.AcquireResult | pb.ReturnResult | pb.ReleaseResult | pb.RenewResult
Event = pb.HandleUpdate | handle_pb2.PullReport
Reply = asyncio.Future[Answer]

_ANSWERS = {
    "acquire": "acquire_result",
    "return_order": "return_result",
    "release": "release_result",
    "renew": "renew_result",
}
_EVENTS = ("handle_update", "pull_report")


class Calls:
    """Pairs answers with calls. Confined to the event loop."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._open: dict[int, tuple[str, Reply]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def begin(self) -> tuple[int, Reply]:
        """A new call id and where its answer will be. ``expect`` completes it."""
        return next(self._ids), asyncio.get_running_loop().create_future()

    def expect(self, call_id: int, answer: str, reply: Reply) -> None:
        """Wait for an answer of this field name of AttachRequest."""
        self._open[call_id] = (answer, reply)

    def answer(self, kind: str, answer: Answer) -> bool:
        """Deliver an answer; False if no such call is open, or it asked for something else."""
        expected = self._open.get(answer.call_id)
        if expected is None or expected[0] != kind:
            return False
        del self._open[answer.call_id]
        if not expected[1].done():
            expected[1].set_result(answer)
        return True

    def fail(self, error: ContraflowError) -> None:
        """No answer will come any more."""
        open_calls, self._open = self._open, {}
        for _, reply in open_calls.values():
            if not reply.done():
                reply.set_exception(error)
                reply.exception()  # read, for nobody may be waiting any more


class EngineLink:
    """The agent's end of one stream. Orders leave in the order of their calls."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self._calls = Calls()
        self._outbox: asyncio.Queue[pb.AttachResponse | None] = asyncio.Queue()
        self._outbox.put_nowait(pb.AttachResponse(welcome=pb.Welcome(attach_epoch=epoch)))
        self._ended: asyncio.Future[ContraflowError] = asyncio.get_running_loop().create_future()

    def call(self, order: Callable[[int], pb.AttachResponse]) -> Reply:
        """Send ``order(call id)``; the future gets the engine's answer, or the error of the link.

        Raises EngineUnresponsive if the engine has stopped answering, EngineNotAttached if
        the link has ended. Do not cancel the future: wait on it with ``asyncio.wait``.
        """
        if self._ended.done():
            raise self._ended.result()
        if len(self._calls) >= MAX_CALLS:
            raise EngineUnresponsive("the engine has stopped answering")
        call_id, reply = self._calls.begin()
        message = order(call_id)
        self._calls.expect(call_id, _ANSWERS[str(message.WhichOneof("message"))], reply)
        self._outbox.put_nowait(message)
        return reply

    def end(self, error: ContraflowError) -> None:
        """End the stream with an error; open calls get EngineNotAttached."""
        if not self._ended.done():
            self._ended.set_result(error)
            self._calls.fail(EngineNotAttached("the link to the engine has ended"))
            self._outbox.put_nowait(None)

    async def orders(
        self, requests: AsyncIterator[pb.AttachRequest], on_event: Callable[[Event], None]
    ) -> AsyncGenerator[pb.AttachResponse, None]:
        """What to send, Welcome first, until the engine hangs up.

        Hears ``requests`` meanwhile. Raises what ``end`` was given.
        """
        reader = asyncio.create_task(self._read(requests, on_event))
        reader.add_done_callback(lambda _: self._outbox.put_nowait(None))
        try:
            while (order := await self._outbox.get()) is not None:
                if self._ended.done():
                    break  # the engine obeys its latest link only
                yield order
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            taken_over = self._ended.done()
            self.end(EngineNotAttached("the link to the engine has ended"))
        if taken_over:
            raise self._ended.result()
        reader.result()

    async def _read(
        self, requests: AsyncIterator[pb.AttachRequest], on_event: Callable[[Event], None]
    ) -> None:
        async for request in requests:
            kind = request.WhichOneof("message")
            if kind in _EVENTS:
                on_event(getattr(request, kind))
            elif kind in _ANSWERS.values():
                if not self._calls.answer(kind, getattr(request, kind)):
                    log.warning("engine_answer_unpaired", kind=kind)
            else:  # a second Hello, or what a later release says
                log.warning("engine_message_ignored", kind=kind)
