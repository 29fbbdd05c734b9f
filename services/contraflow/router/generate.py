"""Generate: a turn of the front door, answered as a stream of messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc

from contraflow.core.errors import EngineFailed, NoEligibleEngine
from contraflow.core.instructions import Pull
from contraflow.router.generate_errors import of_engine, of_router
from contraflow.router.generate_events import EventReader
from contraflow.router.generate_request import http_request
from contraflow.router.metrics import RouterMetrics
from contraflow.router.report import TurnReport
from contraflow.router.turn import Turns
from contraflow.runtime.grpc_interceptor import Context
from contraflow.v1 import handle_pb2
from contraflow.v1 import router_service_pb2 as pb
from contraflow.web import ApiError, ClientDisconnected
from contraflow.web.headers import HeaderPair, Headers
from contraflow.wire.convert import duration

_FROM_METADATA = frozenset({"authorization", "traceparent", "tracestate", "x-request-id"})
_INCOMPLETE = "the engine broke off: the answer is incomplete"


class Generations:
    """Serves Generate."""

    def __init__(
        self, turns: Turns, metrics: RouterMetrics, default_model: Callable[[], str]
    ) -> None:
        self._turns = turns
        self._metrics = metrics
        self._default_model = default_model
        self._running: set[asyncio.Task[object]] = set()
        self._draining = False

    async def run(self, request: pb.GenerateRequest, context: Context) -> None:
        """Run one turn and write its messages. Raises what the contract of Generate names.

        It runs in the task of the call, which ends when the client leaves or its deadline
        passes; with it ends the engine's request.
        """
        if self._draining:
            raise NoEligibleEngine("this router is stopping; ask another one")
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        http = http_request(request, headers_of(context), self._default_model)
        answer = _Answer(context)
        try:
            await self._turns.serve(http, answer, answer.planned)
            await answer.end()
        except ApiError as error:
            self._metrics.error(error.err_type)
            raise of_router(error) from error
        except ClientDisconnected:
            raise asyncio.CancelledError from None

    async def drain(self, deadline: float) -> int:
        """Refuse calls from now on, and let those that run finish for so many seconds.

        Returns how many have not.
        """
        self._draining = True
        if not self._running:
            return 0
        _, left = await asyncio.wait(set(self._running), timeout=deadline)
        return len(left)


class _Answer:
    """A ``ClientResponse`` that writes to a gRPC stream.

    One message at a time: while the client takes none, nothing is read from the engine.
    """

    def __init__(self, context: Context) -> None:
        self.started = False
        self.status = 0
        self._context = context
        self._events = EventReader()
        self._headers: Headers = ()
        self._body = b""
        self._report: TurnReport | None = None

    async def planned(self, report: TurnReport) -> None:
        """Observes the turn."""
        self._report = report
        await self._write(pb.GenerateResponse(plan=_plan(report)))

    def respond(self, status: int, headers: Headers = (), body: bytes = b"") -> None:
        """A whole answer, so an error."""
        self.start(status, headers)
        self._body = body

    def start(self, status: int, headers: Headers = ()) -> None:
        """An event stream begins."""
        self.started = True
        self.status = status
        self._headers = headers

    async def write(self, data: bytes) -> None:
        """Some events."""
        for chunk in self._events.chunks(data):
            await self._write(pb.GenerateResponse(chunk=chunk))

    def finish(self) -> None:
        """The event stream has ended; whether its end was the answer's, its events say."""

    def abort(self) -> None:
        """The engine broke off: the end is missing among the events, too."""

    async def end(self) -> None:
        """Write what follows the answer, or raise what became of it."""
        if error := self._events.error:
            raise EngineFailed(str(error)) if self._events.begun else error
        if self.status != 200 or self._body:
            raise of_engine(self.status, self._headers, self._body)
        if not self._events.done or self._report is None:
            raise EngineFailed(_INCOMPLETE)
        if self._events.usage is not None:
            await self._write(pb.GenerateResponse(usage=self._events.usage))
        await self._write(pb.GenerateResponse(result=_result(self._report)))

    async def _write(self, message: pb.GenerateResponse) -> None:
        try:
            await self._context.write(message)
        except grpc.aio.InternalError as error:
            # A message under way when the caller left: this comes before the cancellation.
            raise ClientDisconnected("the caller has left") from error


def headers_of(context: Context) -> list[HeaderPair]:
    """Of a call's metadata, what a turn would take from a request's headers."""
    return [
        (key.encode(), value.encode() if isinstance(value, str) else value)
        for key, value in context.invocation_metadata() or ()
        if key in _FROM_METADATA
    ]


def _plan(report: TurnReport) -> pb.TurnPlan:
    return pb.TurnPlan(
        turn_id=report.turn_id,
        decision=f"DECISION_{report.decision}",
        reason=f"DECISION_REASON_{report.reason}",
        prefill_engine_id=report.prefill,
        decode_engine_id=report.decode,
        handle_tokens=report.offered_tokens,
    )


def _result(report: TurnReport) -> pb.TurnResult:
    result = pb.TurnResult(
        decision=f"DECISION_{report.decision}",
        reason=f"DECISION_REASON_{report.reason}",
        denial=report.denial,
        time_to_first_token=duration(report.seconds.get("ttft", 0.0)),
        prefill_time=duration(report.seconds.get("prefill", 0.0)),
        total_time=duration(report.seconds["total"]),
    )
    if report.pull is not None:
        result.pull.CopyFrom(_pull(report, report.pull))
    return result


def _pull(report: TurnReport, pull: Pull) -> handle_pb2.PullReport:
    outcome = f"PULL_OUTCOME_{pull.outcome}"
    known = outcome in handle_pb2.PullOutcome.DESCRIPTOR.values_by_name
    return handle_pb2.PullReport(
        turn_id=report.turn_id,
        engine_id=report.prefill,
        remote_engine_id=pull.remote_engine_id,
        outcome=outcome if known else handle_pb2.PULL_OUTCOME_UNSPECIFIED,
        offered_tokens=pull.offered_tokens,
        proven_tokens=pull.proven_tokens,
        local_tokens=pull.local_tokens,
        pulled_tokens=pull.pulled_tokens,
        computed_tokens=pull.computed_tokens,
        bytes=pull.bytes,
        descriptors=pull.descriptors,
        transfer_time=duration(pull.transfer_seconds),
        wall_time=duration(pull.wall_seconds),
    )
