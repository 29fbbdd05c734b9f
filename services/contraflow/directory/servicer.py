"""DirectoryService: decodes, calls, encodes."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from contraflow.core.errors import InvalidArgument
from contraflow.core.fleet import Engine, Session
from contraflow.directory.app import Directory, Mark, WatchStep
from contraflow.runtime.clock import Clock
from contraflow.runtime.grpc_errors import item_status
from contraflow.runtime.grpc_interceptor import Context
from contraflow.v1 import directory_service_pb2 as pb
from contraflow.v1.directory_service_pb2_grpc import DirectoryServiceServicer
from contraflow.wire.convert import (
    duration,
    engine_from_proto,
    engine_to_proto,
    seconds,
    session_from_proto,
    session_to_proto,
)

SERVICE = "contraflow.v1.DirectoryService"


class DirectoryServicer(DirectoryServiceServicer):
    """See directory_service.proto."""

    def __init__(self, directory: Directory, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock

    async def RegisterEngine(
        self, request: pb.RegisterEngineRequest, context: Context
    ) -> pb.RegisterEngineResponse:
        """Decode, call, encode."""
        engine = engine_from_proto(request.engine)
        if engine is None:
            raise InvalidArgument("the engine needs a known role", field="engine.role")
        ttl = seconds(request.ttl) if request.HasField("ttl") else None
        registration_id, granted = await self._directory.register(
            engine, ttl, request.registration_id, request.sequence
        )
        return pb.RegisterEngineResponse(registration_id=registration_id, ttl=duration(granted))

    async def RenewEngine(
        self, request: pb.RenewEngineRequest, context: Context
    ) -> pb.RenewEngineResponse:
        """Decode, call, encode."""
        granted = await self._directory.renew(request.registration_id)
        return pb.RenewEngineResponse(ttl=duration(granted))

    async def DeregisterEngine(
        self, request: pb.DeregisterEngineRequest, context: Context
    ) -> pb.DeregisterEngineResponse:
        """Decode, call, encode."""
        await self._directory.deregister(request.registration_id)
        return pb.DeregisterEngineResponse()

    async def PublishSessions(
        self, request: pb.PublishSessionsRequest, context: Context
    ) -> pb.PublishSessionsResponse:
        """Decode, call, encode."""
        now = self._clock.now()
        sessions = [session_from_proto(session, now) for session in request.sessions]
        outcomes, revision = await self._directory.publish(request.registration_id, sessions)
        return pb.PublishSessionsResponse(statuses=map(item_status, outcomes), revision=revision)

    async def WithdrawSessions(
        self, request: pb.WithdrawSessionsRequest, context: Context
    ) -> pb.WithdrawSessionsResponse:
        """Decode, call, encode."""
        ended = [(item.session_key, item.handle_id) for item in request.withdrawals]
        outcomes = await self._directory.withdraw(ended)
        return pb.WithdrawSessionsResponse(statuses=map(item_status, outcomes))

    async def GetEngine(
        self, request: pb.GetEngineRequest, context: Context
    ) -> pb.GetEngineResponse:
        """Decode, call, encode."""
        engine = self._directory.get_engine(request.engine_id)
        return pb.GetEngineResponse(engine=engine_to_proto(engine))

    async def ListEngines(
        self, request: pb.ListEnginesRequest, context: Context
    ) -> pb.ListEnginesResponse:
        """Decode, call, encode."""
        engines, token = self._directory.list_engines(request.page_size, request.page_token)
        return pb.ListEnginesResponse(engines=map(engine_to_proto, engines), next_page_token=token)

    async def GetSession(
        self, request: pb.GetSessionRequest, context: Context
    ) -> pb.GetSessionResponse:
        """Decode, call, encode."""
        session = self._directory.get_session(request.session_key)
        return pb.GetSessionResponse(session=session_to_proto(session, self._clock.now()))

    async def ListSessions(
        self, request: pb.ListSessionsRequest, context: Context
    ) -> pb.ListSessionsResponse:
        """Decode, call, encode."""
        sessions, token = self._directory.list_sessions(request.page_size, request.page_token)
        now = self._clock.now()
        return pb.ListSessionsResponse(
            sessions=[session_to_proto(session, now) for session in sessions],
            next_page_token=token,
        )

    async def Watch(
        self, request: pb.WatchRequest, context: Context
    ) -> AsyncGenerator[pb.WatchResponse, None]:
        """Decode, call, encode."""
        if request.start_revision < 0:
            raise InvalidArgument("revisions are not negative", field="start_revision")
        async for step in self._directory.watch(request.start_revision):
            yield self._response(step)

    def _response(self, step: WatchStep) -> pb.WatchResponse:
        event, revision = step.event, step.revision
        if isinstance(event, Engine):
            return pb.WatchResponse(engine=engine_to_proto(event), revision=revision)
        if isinstance(event, Session):
            session = session_to_proto(event, self._clock.now())
            return pb.WatchResponse(session=session, revision=revision)
        if event is Mark.SNAPSHOT_END:
            return pb.WatchResponse(snapshot_end=pb.SnapshotEnd(), revision=revision)
        if event is Mark.PROGRESS:
            return pb.WatchResponse(progress=pb.Progress(), revision=revision)
        removal = pb.Removal(engine_id=event.engine_id, session_key=event.session_key)
        return pb.WatchResponse(removal=removal, revision=revision)
