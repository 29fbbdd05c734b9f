"""Calls to agents: one pooled channel for each address, claims taken and given back."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc
import structlog

from contraflow.core.chain import Proof
from contraflow.core.errors import ContraflowError, Internal
from contraflow.core.handle_use import HandleUse
from contraflow.core.transfer_params import Params
from contraflow.runtime.channels import OpenChannel, open_channel
from contraflow.runtime.grpc_errors import TimedOut, Unreachable, domain_errors
from contraflow.v1 import agent_service_pb2 as pb
from contraflow.v1 import agent_service_pb2_grpc as pb_grpc
from contraflow.wire.convert import duration, proof_from_proto
from contraflow.wire.params import params_from_proto

if TYPE_CHECKING:
    from contraflow.v1.agent_service_pb2_grpc import AgentServiceAsyncStub

log = structlog.get_logger()

_ERRAND_TIMEOUT_SECONDS = 5.0
_OPTIONS = (
    # A token proof takes 8 bytes a block: half a megabyte for a million tokens.
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 5_000),
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A claim to ask for; ``hint_handle_id`` may be stale or empty.

    ``message_digests`` of turns that this one may go on from, the latest first, tell branches
    apart. With ``produced_by_turn_id`` only the handle of that turn will do.
    """

    claim_id: str
    tenant: str
    session_key: str
    engine_id: str
    agent_address: str
    hint_handle_id: str
    message_digests: tuple[str, ...] = ()
    produced_by_turn_id: str = ""


@dataclass(slots=True)
class Claim:
    """A claim granted: what the prefill engine needs for its pull, and ``use``, what it shall do.

    ``unread`` is true as long as it is proven that no read was started: no byte of a prefill
    request with it was sent, or the engine reports that it declined and kept.
    """

    claim_id: str
    engine_id: str
    agent_address: str
    handle_id: str
    num_tokens: int
    params: Params
    proof: Proof
    use: HandleUse = field(default_factory=HandleUse)
    unread: bool = True


class Agents:
    """Claims handles and gives them back, lists and releases them. Made inside a running
    event loop."""

    def __init__(
        self, acquire_deadline: float, start_by: float, open_channel: OpenChannel = open_channel
    ) -> None:
        """Seconds: the longest wait for a grant, and until when a granted read must start."""
        self._open_channel = open_channel
        self._deadline = acquire_deadline
        self._start_by = duration(start_by)
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._errands: set[asyncio.Task[None]] = set()

    async def acquire(self, wanted: Wanted) -> Claim:
        """Claim the newest handle of a session.

        Raises the owner's denial, Unreachable or TimedOut, each within the deadline. A claim
        that may have been granted in vain (the answer was lost, came too late, can not be read,
        or the caller was cancelled) is given back.
        """
        try:
            return _claim(wanted, await self._acquire(wanted))
        except BaseException as error:
            if not isinstance(error, ContraflowError) or isinstance(error, Internal):
                self.run(self._return(wanted, wait=False))
            if isinstance(error, TimeoutError):
                raise TimedOut("no answer", grpc.StatusCode.DEADLINE_EXCEEDED) from error
            if isinstance(error, ValueError):
                raise Internal("the grant can not be read") from error
            raise

    def give_back(self, claim: Claim) -> None:
        """Return a claim, off the caller's path, and have its handle freed if that is its use.
        Only where no read can have been started."""
        self.run(self._free(claim) if claim.use.release else self._return(claim))

    async def list_handles(self, agent_address: str, session_key: str) -> pb.ListHandlesResponse:
        """Live handles of a session at one agent, and the engines that it knows of. Raises what
        the agent does, Unreachable or TimedOut."""
        request = pb.ListHandlesRequest(session_key=session_key)
        with domain_errors():
            stub = self._stub(agent_address)
            return await stub.ListHandles(request, timeout=_ERRAND_TIMEOUT_SECONDS)

    async def release(self, agent_address: str, handle_ids: Sequence[str]) -> Sequence[str]:
        """Free handles; the ids of those that will be free. Claimed ones end with their
        claims. Raises as ``list_handles``."""
        request = pb.ReleaseHandlesRequest(handle_ids=handle_ids)
        with domain_errors():
            stub = self._stub(agent_address)
            response = await stub.ReleaseHandles(request, timeout=_ERRAND_TIMEOUT_SECONDS)
        return response.released_handle_ids

    def run(self, errand: Coroutine[None, None, None]) -> None:
        """Run what no turn shall wait for."""
        task = asyncio.create_task(errand)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def close(self) -> None:
        """Finish what is being given back or released, then close the channels."""
        if self._errands:
            await asyncio.wait(set(self._errands), timeout=_ERRAND_TIMEOUT_SECONDS)
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()

    async def _acquire(self, wanted: Wanted) -> pb.AcquireHandleResponse:
        request = pb.AcquireHandleRequest(
            claim_id=wanted.claim_id,
            tenant=wanted.tenant,
            session_key=wanted.session_key,
            engine_id=wanted.engine_id,
            hint_handle_id=wanted.hint_handle_id,
            message_digests=wanted.message_digests,
            produced_by_turn_id=wanted.produced_by_turn_id,
            start_by=self._start_by,
        )
        with domain_errors():
            # The call's own deadline travels to the agent; ours also bounds name resolution.
            async with asyncio.timeout(self._deadline):
                stub = self._stub(wanted.agent_address)
                return await stub.AcquireHandle(request, timeout=self._deadline)

    async def _free(self, claim: Claim) -> None:
        try:
            # First: returned before, it could be claimed by another turn.
            await self.release(claim.agent_address, [claim.handle_id])
        except ContraflowError as error:
            log.info("handle_not_released", handle_id=claim.handle_id, why=denial_of(error))
        await self._return(claim)

    async def _return(self, claim: Claim | Wanted, *, wait: bool = True) -> None:
        request = pb.ReturnClaimRequest(claim_id=claim.claim_id, engine_id=claim.engine_id)
        try:
            with domain_errors():
                stub = self._stub(claim.agent_address)
                await stub.ReturnClaim(
                    request, timeout=_ERRAND_TIMEOUT_SECONDS, wait_for_ready=wait
                )
            outcome = "RETURNED"
        except ContraflowError as error:
            # It ends by itself at its start_by.
            outcome = denial_of(error)
        log.info(
            "claim_returned", claim_id=claim.claim_id, engine_id=claim.engine_id, outcome=outcome
        )

    def _stub(self, address: str) -> AgentServiceAsyncStub:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._open_channel(address, _OPTIONS)
        return pb_grpc.AgentServiceStub(channel)


def _claim(wanted: Wanted, response: pb.AcquireHandleResponse) -> Claim:
    """Raises ValueError if the parameters can not be read."""
    return Claim(
        claim_id=wanted.claim_id,
        engine_id=wanted.engine_id,
        agent_address=wanted.agent_address,
        handle_id=response.handle.handle_id,
        num_tokens=response.handle.num_tokens,
        params=params_from_proto(response.transfer_params),
        proof=proof_from_proto(response.proof),
    )


def denial_of(error: Exception) -> str:
    """A short name for why nothing was claimed: the owner's reason, or what ailed the call."""
    if isinstance(error, TimedOut):
        return "TIMEOUT"
    if isinstance(error, Unreachable):
        return "UNREACHABLE"
    return str(error.reason) if isinstance(error, ContraflowError) else "INTERNAL"
