"""AgentService and EngineLinkService: decode, call, encode."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import grpc

from contraflow.agent import codec
from contraflow.agent.app import MAX_PAGE_SIZE, Agent
from contraflow.agent.attachment import Attachment
from contraflow.agent.config import ClaimConfig
from contraflow.agent.engines import Engines
from contraflow.core.errors import InvalidArgument
from contraflow.core.fleet import Engine
from contraflow.core.session import is_session_key
from contraflow.runtime.clock import Clock
from contraflow.v1 import agent_service_pb2 as pb
from contraflow.v1 import engine_link_service_pb2 as link_pb
from contraflow.v1 import engine_pb2
from contraflow.v1.agent_service_pb2_grpc import AgentServiceServicer
from contraflow.v1.engine_link_service_pb2_grpc import EngineLinkServiceServicer
from contraflow.wire.convert import duration, engine_to_proto

MAX_RELEASED = 1000
"""Handle ids in one ReleaseHandles."""

Context = grpc.aio.ServicerContext[Any, Any]


class AgentServicer(AgentServiceServicer):
    """For routers and operators."""

    def __init__(
        self, agent: Agent, claim: ClaimConfig, advertise_address: str, clock: Clock
    ) -> None:
        self._agent = agent
        self._claim = claim
        self._advertise_address = advertise_address
        self._clock = clock

    async def AcquireHandle(
        self, request: pb.AcquireHandleRequest, context: Context
    ) -> pb.AcquireHandleResponse:
        """Claim the newest handle of a session."""
        wanted = codec.claim_request(
            request, self._claim.start_by_seconds, self._claim.max_read_seconds
        )
        granted = await self._agent.acquire(request.engine_id, wanted, context.time_remaining())
        return pb.AcquireHandleResponse(
            handle=codec.handle_to_proto(granted.handle, self._clock.now()),
            transfer_params=granted.params,
            proof=granted.proof,
            start_by=duration(granted.start_by),
            hold_until=duration(granted.hold_until),
        )

    async def ReturnClaim(
        self, request: pb.ReturnClaimRequest, context: Context
    ) -> pb.ReturnClaimResponse:
        """Give a claim back unread."""
        codec.require_id(request.claim_id, "claim_id")
        codec.require_id(request.engine_id, "engine_id")
        await self._agent.return_claim(
            request.engine_id, request.claim_id, context.time_remaining()
        )
        return pb.ReturnClaimResponse()

    async def ReleaseHandles(
        self, request: pb.ReleaseHandlesRequest, context: Context
    ) -> pb.ReleaseHandlesResponse:
        """Free retained handles."""
        if len(request.handle_ids) > MAX_RELEASED:
            raise InvalidArgument(f"at most {MAX_RELEASED} handles a call", field="handle_ids")
        for handle_id in request.handle_ids:
            codec.require_handle_id(handle_id, "handle_ids")
        released = await self._agent.release(request.handle_ids, context.time_remaining())
        return pb.ReleaseHandlesResponse(released_handle_ids=released)

    async def ListHandles(
        self, request: pb.ListHandlesRequest, context: Context
    ) -> pb.ListHandlesResponse:
        """Handles known here, in pages."""
        _require_session_key(request.session_key)
        limit = min(request.page_size or MAX_PAGE_SIZE, MAX_PAGE_SIZE)
        page = self._agent.list_handles(_after(request.page_token), request.session_key, limit)
        now = self._clock.now()
        return pb.ListHandlesResponse(
            handles=[codec.handle_to_proto(handle, now) for handle in page.handles],
            next_page_token=_token(page.handles[-1].handle_id) if page.more else "",
            engine_ids=page.engine_ids,
        )

    async def GetHandle(
        self, request: pb.GetHandleRequest, context: Context
    ) -> pb.GetHandleResponse:
        """One live handle."""
        codec.require_handle_id(request.handle_id, "handle_id")
        handle = self._agent.get_handle(request.handle_id)
        return pb.GetHandleResponse(handle=codec.handle_to_proto(handle, self._clock.now()))

    async def WatchHandles(
        self, request: pb.WatchHandlesRequest, context: Context
    ) -> AsyncGenerator[pb.WatchHandlesResponse, None]:
        """Handles that there are, the marker, then changes."""
        _require_session_key(request.session_key)
        async with aclosing(self._agent.watch_handles(request.session_key)) as handles:
            async for handle in handles:
                if handle is None:
                    yield pb.WatchHandlesResponse(listed=pb.HandlesListed())
                else:
                    message = codec.handle_to_proto(handle, self._clock.now())
                    yield pb.WatchHandlesResponse(handle=message)

    async def DrainEngine(
        self, request: pb.DrainEngineRequest, context: Context
    ) -> pb.DrainEngineResponse:
        """Take an engine out of service for new turns, or put it back."""
        codec.require_id(request.engine_id, "engine_id")
        if request.release_handles and not request.draining:
            raise InvalidArgument("only a drain releases handles", field="release_handles")
        engine = await self._agent.drain(
            request.engine_id,
            request.draining,
            release=request.release_handles,
            time_left=context.time_remaining(),
        )
        return pb.DrainEngineResponse(engine=self._described(engine))

    async def ListAttachedEngines(
        self, request: pb.ListAttachedEnginesRequest, context: Context
    ) -> pb.ListAttachedEnginesResponse:
        """Engines with a live link."""
        return pb.ListAttachedEnginesResponse(
            engines=[self._attached(one) for one in self._agent.attached_engines()]
        )

    def _attached(self, attachment: Attachment) -> pb.AttachedEngine:
        return pb.AttachedEngine(
            engine=self._described(attachment.engine),
            attach_epoch=attachment.link.epoch if attachment.link else 0,
            retained_handles=len(attachment.mirror),
            pulls=attachment.pulls,
        )

    def _described(self, engine: Engine) -> engine_pb2.Engine:
        return engine_to_proto(replace(engine, agent_address=self._advertise_address))


class EngineLinkServicer(EngineLinkServiceServicer):
    """For the connectors of this node's engines."""

    def __init__(self, engines: Engines, clock: Clock) -> None:
        self._engines = engines
        self._clock = clock

    async def Attach(
        self, request_iterator: Any, context: Context
    ) -> AsyncGenerator[link_pb.AttachResponse, None]:
        """One link of one engine."""
        requests = aiter(request_iterator)
        first: link_pb.AttachRequest | None = await anext(requests, None)
        hello = codec.introduction(first, self._clock.now())
        with self._engines.attach(hello) as (attachment, link):
            async with aclosing(link.orders(requests, attachment.on_event)) as orders:
                async for order in orders:
                    yield order


def _require_session_key(text: str) -> None:
    if text and not is_session_key(text):
        raise InvalidArgument("a session key has 32 hex digits", field="session_key")


def _token(handle_id: str) -> str:
    return base64.urlsafe_b64encode(handle_id.encode()).decode()


def _after(token: str) -> str:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise InvalidArgument("not a page token of this server", field="page_token") from error
