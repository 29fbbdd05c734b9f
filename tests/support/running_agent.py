"""The agent, in this process, on a real unix socket and a free port."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from prometheus_client import CollectorRegistry

from contraflow.agent.config import AgentConfig, ClaimConfig, RetentionConfig
from contraflow.agent.main import running
from contraflow.core.errors import Reason
from contraflow.runtime.address import Address
from contraflow.runtime.clock import SystemClock
from contraflow.runtime.grpc_errors import STATUS_CODES, from_rpc_error
from contraflow.v1 import agent_service_pb2 as pb
from contraflow.v1.agent_service_pb2_grpc import AgentServiceStub
from tests.support.fake_engine_link import session_key
from tests.support.wait import DEADLINE_SECONDS

if TYPE_CHECKING:
    from contraflow.v1.agent_service_pb2_grpc import AgentServiceAsyncStub

NOBODY = Address("127.0.0.1", 9)
"""An address at which no directory answers."""


@dataclass(frozen=True, slots=True)
class RunningAgent:
    """``link`` is the target at which engines attach, ``address`` what routers dial."""

    stub: AgentServiceAsyncStub
    address: str
    link: str
    registry: CollectorRegistry

    async def acquire(
        self,
        claim_id: str,
        session: str,
        *,
        engine_id: str = "decode-1",
        tenant: str = "acme",
        start_by: float | None = None,
        timeout: float | None = 30.0,
    ) -> pb.AcquireHandleResponse:
        """Claim the newest handle of a session."""
        request = pb.AcquireHandleRequest(
            claim_id=claim_id,
            tenant=tenant,
            session_key=session_key(session),
            engine_id=engine_id,
        )
        if start_by is not None:
            request.start_by.CopyFrom(Duration(seconds=int(start_by)))
        return await self.stub.AcquireHandle(request, timeout=timeout)

    async def give_back(self, claim_id: str, engine_id: str = "decode-1") -> None:
        """Return a claim."""
        await self.stub.ReturnClaim(
            pb.ReturnClaimRequest(claim_id=claim_id, engine_id=engine_id), timeout=30.0
        )

    def acquires(self, outcome: str) -> float:
        """How many acquires have ended so: GRANTED, CANCELLED or a reason."""
        name, labels = "contraflow_agent_acquire_seconds_count", {"outcome": outcome}
        return self.registry.get_sample_value(name, labels) or 0.0

    async def handles(self) -> list[str]:
        """Ids of all handles known."""
        response = await self.stub.ListHandles(pb.ListHandlesRequest(), timeout=30.0)
        return [handle.handle_id for handle in response.handles]

    async def engines(self) -> list[pb.AttachedEngine]:
        """The attached engines."""
        response = await self.stub.ListAttachedEngines(
            pb.ListAttachedEnginesRequest(), timeout=30.0
        )
        return list(response.engines)


@asynccontextmanager
async def running_agent(
    directory: Sequence[Address] = (NOBODY,),
    *,
    listen: Address | None = None,
    link: str = "",
    acquire_timeout: float = 30.0,
    ttl: float = 10.0,
    retention: RetentionConfig | None = None,
) -> AsyncIterator[RunningAgent]:
    """An agent for as long as the context lasts; ``link`` to start it again at a socket.

    With ``listen`` that is what it tells the directory, else an address nobody can reach.
    """
    with tempfile.TemporaryDirectory(prefix="agent-") as folder:
        config = AgentConfig(
            listen=listen or Address("127.0.0.1", 0),
            advertise_address=None if listen else Address("agent.test", 7000),
            link_socket=Address.parse(link or f"unix:{folder}/link.sock"),
            directory=list(directory),
            claim=ClaimConfig(acquire_timeout_seconds=acquire_timeout, order_timeout_seconds=30.0),
            retention=retention or RetentionConfig(),
            liveness_ttl_seconds=ttl,
        )
        registry = CollectorRegistry()
        async with (
            running(config, SystemClock(), registry) as address,
            grpc.aio.insecure_channel(str(address)) as channel,
        ):
            yield RunningAgent(
                AgentServiceStub(channel), str(address), str(config.link_socket), registry
            )


def reason_of(error: grpc.aio.AioRpcError) -> Reason:
    """The reason of a failed call; asserts that its status is the one of that reason."""
    reason = from_rpc_error(error).reason
    assert error.code() is STATUS_CODES[reason]
    return reason


async def eventually(
    condition: Callable[[], Awaitable[bool]], what: str, within: float = DEADLINE_SECONDS
) -> None:
    """As ``tests.support.wait.until``, for a condition that has to be asked over the wire."""
    try:
        async with asyncio.timeout(within):
            while True:
                if await condition():
                    return
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {within} s: {what}") from None


async def denied(call: Awaitable[object]) -> Reason:
    """The reason with which a call fails."""
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    return reason_of(failure.value)
