"""The directory as agents and routers call it: domain values, failover, an endless watch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeVar

import structlog

from contraflow.core.errors import (
    ContraflowError,
    NotFound,
    RevisionCompacted,
    StoreUnavailable,
)
from contraflow.core.fleet import Engine, Session
from contraflow.runtime.address import Address
from contraflow.runtime.backoff import Backoff
from contraflow.runtime.channels import OpenChannel, open_channel
from contraflow.runtime.clock import Clock
from contraflow.runtime.fleet_replica import QUIET_SECONDS, FleetReplica
from contraflow.runtime.grpc_errors import (
    TimedOut,
    Unreachable,
    domain_errors,
    from_item_status,
)
from contraflow.v1 import directory_service_pb2 as pb
from contraflow.v1.directory_service_pb2_grpc import DirectoryServiceStub
from contraflow.wire.convert import (
    duration,
    engine_from_proto,
    engine_to_proto,
    seconds,
    session_to_proto,
)

if TYPE_CHECKING:
    from contraflow.v1.directory_service_pb2_grpc import DirectoryServiceAsyncStub

log = structlog.get_logger()
ResponseT = TypeVar("ResponseT")

_OPTIONS = (("grpc.max_receive_message_length", -1),)
_TRY_NEXT = (Unreachable, TimedOut, StoreUnavailable)


@dataclass(frozen=True, slots=True)
class Registration:
    """A liveness lease. ``expires_at`` is on the clock of the client, counted from before
    the request was sent."""

    registration_id: str
    ttl: float
    expires_at: float


class DirectoryClient:
    """Made inside a running event loop. Any address serves any call: a call that finds one
    unreachable, too slow, or without its store, tries the next, each once.

    All methods raise ContraflowError: what the directory says, or CallFailed (Unreachable,
    TimedOut).
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        clock: Clock,
        *,
        call_timeout: float = 2.0,
        quiet_timeout: float = QUIET_SECONDS,
        new_backoff: Callable[[], Backoff] = Backoff,
        open_channel: OpenChannel = open_channel,
    ) -> None:
        """``call_timeout`` bounds each try; a watch that is silent for ``quiet_timeout``
        seconds (the directory marks progress far more often) is taken for dead."""
        self._clock = clock
        self._call_timeout = call_timeout
        self._quiet_timeout = quiet_timeout
        self._new_backoff = new_backoff
        self._channels = [open_channel(str(address), _OPTIONS) for address in addresses]
        self._stubs: list[DirectoryServiceAsyncStub] = [
            DirectoryServiceStub(channel) for channel in self._channels
        ]
        self._current = 0

    async def close(self) -> None:
        """End all calls."""
        for channel in self._channels:
            await channel.close()

    async def register(
        self, engine: Engine, ttl: float, registration_id: str = "", sequence: int = 0
    ) -> Registration:
        """Register an incarnation, or change what is registered under ``registration_id``, which
        goes on if it is alive. A try without an answer may be carried out late: ``sequence``, if
        not 0, rises with each call, and what is not above the recorded one is refused.

        Raises EngineIdReused, RegistrationOutdated, StoreUnavailable."""
        request = pb.RegisterEngineRequest(
            engine=engine_to_proto(engine),
            ttl=duration(ttl),
            registration_id=registration_id,
            sequence=sequence,
        )
        sent_at = self._clock.now()
        response = await self._call(
            lambda stub: stub.RegisterEngine(request, timeout=self._call_timeout)
        )
        granted = seconds(response.ttl)
        return Registration(response.registration_id, granted, sent_at + granted)

    async def find_engine(self, engine_id: str) -> Engine | None:
        """The live engine of an id. Raises StoreUnavailable before a replica knows any."""
        request = pb.GetEngineRequest(engine_id=engine_id)
        try:
            response = await self._call(
                lambda stub: stub.GetEngine(request, timeout=self._call_timeout)
            )
        except NotFound:
            return None
        return engine_from_proto(response.engine)

    async def renew(self, registration_id: str) -> Registration:
        """Extend a registration. Raises RegistrationNotFound: register again, publish all."""
        request = pb.RenewEngineRequest(registration_id=registration_id)
        sent_at = self._clock.now()
        response = await self._call(
            lambda stub: stub.RenewEngine(request, timeout=self._call_timeout)
        )
        granted = seconds(response.ttl)
        return Registration(registration_id, granted, sent_at + granted)

    async def deregister(self, registration_id: str) -> None:
        """End a registration; succeeds if it is gone."""
        request = pb.DeregisterEngineRequest(registration_id=registration_id)
        await self._call(lambda stub: stub.DeregisterEngine(request, timeout=self._call_timeout))

    async def publish(
        self, registration_id: str, sessions: Sequence[Session]
    ) -> list[ContraflowError | None]:
        """Write session records; one outcome per session, in order. Tried once: without an answer
        they may be written at any time until the registration ends.

        Of an item: InvalidArgument, RegistrationNotFound.
        """
        now = self._clock.now()
        request = pb.PublishSessionsRequest(
            registration_id=registration_id,
            sessions=[session_to_proto(session, now) for session in sessions],
        )
        response = await self._call_once(
            lambda stub: stub.PublishSessions(request, timeout=self._call_timeout)
        )
        return [from_item_status(status) for status in response.statuses]

    async def withdraw(self, ended: Sequence[tuple[str, str]]) -> list[ContraflowError | None]:
        """Remove records by (session key, handle id); those that name another handle stay."""
        request = pb.WithdrawSessionsRequest(
            withdrawals=[
                pb.SessionWithdrawal(session_key=key, handle_id=handle) for key, handle in ended
            ]
        )
        response = await self._call(
            lambda stub: stub.WithdrawSessions(request, timeout=self._call_timeout)
        )
        return [from_item_status(status) for status in response.statuses]

    async def follow(self, replica: FleetReplica) -> NoReturn:
        """Keep ``replica`` current until cancelled, through every failure."""
        backoff = self._new_backoff()
        while True:
            stub = self._stubs[self._current]
            try:
                with domain_errors():
                    await self._watch_once(stub, replica, backoff)
            except RevisionCompacted:
                log.info("directory_watch_restarts", revision=replica.resume_from)
                replica.forget_revision()
            except (ContraflowError, TimeoutError) as error:
                log.warning("directory_watch_lost", error=str(error) or "silent")
                self._rotate(stub)
            await self._clock.sleep(backoff.next())

    async def _watch_once(
        self, stub: DirectoryServiceAsyncStub, replica: FleetReplica, backoff: Backoff
    ) -> None:
        replica.begin()
        call = stub.Watch(pb.WatchRequest(start_revision=replica.resume_from))
        responses = aiter(call)
        try:
            while True:
                async with asyncio.timeout(self._quiet_timeout):
                    response = await anext(responses, None)
                if response is None:
                    return
                replica.apply(response)
                backoff.reset()
        finally:
            call.cancel()

    async def _call(
        self, send: Callable[[DirectoryServiceAsyncStub], Awaitable[ResponseT]]
    ) -> ResponseT:
        for _ in self._stubs[1:]:
            with suppress(*_TRY_NEXT):
                return await self._call_once(send)
        with domain_errors():
            return await send(self._stubs[self._current])

    async def _call_once(
        self, send: Callable[[DirectoryServiceAsyncStub], Awaitable[ResponseT]]
    ) -> ResponseT:
        stub = self._stubs[self._current]
        try:
            with domain_errors():
                return await send(stub)
        except _TRY_NEXT:
            self._rotate(stub)
            raise

    def _rotate(self, failed: DirectoryServiceAsyncStub) -> None:
        if self._stubs[self._current] is failed:
            self._current = (self._current + 1) % len(self._stubs)
