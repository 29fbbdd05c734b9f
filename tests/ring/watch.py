"""What agents tell of handles, followed through their deaths."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import grpc

from contraflow.core.handle import State
from contraflow.v1 import agent_service_pb2 as pb
from contraflow.v1 import handle_pb2
from contraflow.v1.agent_service_pb2_grpc import AgentServiceStub
from tests.ring.fleet import Fleet
from tests.ring.history import History
from tests.ring.layout import AGENTS

_AGAIN_SECONDS = 0.2


@asynccontextmanager
async def watched(fleet: Fleet, history: History) -> AsyncIterator[None]:
    """Handles go into the history, for as long as the context lasts."""
    watches = [asyncio.ensure_future(_watch(fleet, one, history)) for one in AGENTS]
    try:
        yield
    finally:
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)


async def _watch(fleet: Fleet, agent: str, history: History) -> None:
    async with fleet.dialled(agent) as channel:
        stub = AgentServiceStub(channel)
        while True:
            with suppress(grpc.aio.AioRpcError):
                async for event in stub.WatchHandles(pb.WatchHandlesRequest()):
                    if event.HasField("handle"):
                        _note(event.handle, history)
            await asyncio.sleep(_AGAIN_SECONDS)


def _note(handle: handle_pb2.Handle, history: History) -> None:
    name = handle_pb2.HandleState.Name(handle.state).removeprefix("HANDLE_STATE_")
    states = history.handles.setdefault(handle.handle_id, [])
    if states[-1:] != [State(name)]:
        states.append(State(name))
