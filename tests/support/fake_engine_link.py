"""An engine as its agent sees it: the connector's side of the link, with a real handle table."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc

from contraflow.core.chain import Proof
from contraflow.core.errors import ContraflowError
from contraflow.core.fleet import Engine, Role
from contraflow.core.handle import ClaimRequest, Handle, HandleTable, State
from contraflow.runtime.grpc_errors import from_rpc_error
from contraflow.v1 import engine_link_service_pb2 as pb
from contraflow.v1 import handle_pb2
from contraflow.v1.engine_link_service_pb2_grpc import EngineLinkServiceStub
from contraflow.wire.convert import (
    duration,
    engine_to_proto,
    handle_to_proto,
    proof_to_proto,
    seconds,
)
from contraflow.wire.errors import reason_to_proto
from contraflow.wire.params import params_to_proto

BLOCK_SIZE = 16


def engine(
    engine_id: str = "decode-1",
    *,
    endpoint: str = "http://127.0.0.1:9",
    role: Role = Role.DECODE,
    boot_nonce: str = "nonce-1",
    dp_rank: int = 0,
) -> Engine:
    """An engine as its connector introduces it."""
    return Engine(
        engine_id=engine_id,
        boot_nonce=boot_nonce,
        role=role,
        endpoint=endpoint,
        dp_rank=dp_rank,
        served_models=("demo",),
        model="demo",
        block_size=BLOCK_SIZE,
        num_blocks=100_000,
        bidirectional=True,
    )


def session_key(name: str) -> str:
    """A well-formed session key."""
    return hashlib.sha256(name.encode()).hexdigest()[:32]


class FakeEngineLink:
    """Attaches to an agent and obeys it. What it holds outlives its links, as in an engine."""

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        self.engine = engine
        self.table = HandleTable()
        self.epochs: list[int] = []
        """Attach epochs, the latest last."""
        self.orders: list[str] = []
        """Kinds of the orders heard, in order."""
        self.ended: asyncio.Queue[ContraflowError | None] = asyncio.Queue()
        """How each link ended: None if without an error."""
        self._clock = clock
        self._answers = asyncio.Event()
        self._answers.set()
        self._outbox: asyncio.Queue[pb.AttachRequest] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._requests = 0

    @asynccontextmanager
    async def attached(self, target: str) -> AsyncIterator[FakeEngineLink]:
        """A link for as long as the context lasts, from Welcome on."""
        await self.attach(target)
        try:
            yield self
        finally:
            await self.detach()

    async def attach(self, target: str) -> None:
        """Begin a link; an earlier one is left as it is. Returns after Welcome, or the end."""
        welcomed = asyncio.Event()
        self._outbox = asyncio.Queue()
        self._task = asyncio.create_task(self._run(target, self._outbox, welcomed))
        await welcomed.wait()

    async def detach(self) -> None:
        """Break the latest link."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def hold_answers(self) -> None:
        """Act on orders, and keep the answers back until ``give_answers``."""
        self._answers.clear()

    def give_answers(self) -> None:
        """Say what was held back."""
        self._answers.set()

    def retain(
        self,
        session: str,
        *,
        tenant: str = "acme",
        tokens: int = 40,
        ttl: float = 480.0,
        message_digest: str = "",
    ) -> Handle:
        """A request of a session has finished: its blocks are retained and the agent is told.

        Older handles of the session are superseded.
        """
        self._requests += 1
        request_id = f"request-{self._requests}"
        blocks = tokens // BLOCK_SIZE
        handle = Handle(
            handle_id=f"{self.engine.engine_id}/{request_id}",
            request_id=request_id,
            tenant=tenant,
            session_key=session_key(session),
            num_tokens=tokens,
            num_blocks=-(-tokens // BLOCK_SIZE),
            proof=Proof(BLOCK_SIZE, tokens, bytes(8 * blocks), bytes(16)),
            params={"remote_engine_id": self.engine.engine_id, "remote_request_id": request_id},
            deadline=self._clock() + ttl,
            retained_at=self._clock(),
            message_digest=message_digest,
        )
        for superseded in self.table.retain(handle, lambda _: True):
            self.tell(superseded)
        self.tell(handle)
        return handle

    def end(self, handle: Handle, state: State) -> None:
        """A handle has been read or has expired."""
        if ended := self.table.end(handle.request_id, state):
            self.tell(ended)

    def state_of(self, handle: Handle) -> State | None:
        """The state of a live handle."""
        live = self.table.get(handle.request_id)
        return live.state if live else None

    def tell(self, handle: Handle) -> None:
        """Send a HandleUpdate."""
        self.say(pb.AttachRequest(handle_update=pb.HandleUpdate(handle=self._described(handle))))

    def report(self, outcome: handle_pb2.PullOutcome, *, pulled_tokens: int = 0) -> None:
        """Send a PullReport."""
        report = handle_pb2.PullReport(
            engine_id=self.engine.engine_id, outcome=outcome, pulled_tokens=pulled_tokens
        )
        self.say(pb.AttachRequest(pull_report=report))

    def say(self, message: pb.AttachRequest) -> None:
        """Send anything."""
        self._outbox.put_nowait(message)

    async def _run(
        self, target: str, outbox: asyncio.Queue[pb.AttachRequest], welcomed: asyncio.Event
    ) -> None:
        async with grpc.aio.insecure_channel(target) as channel:
            call = EngineLinkServiceStub(channel).Attach(self._requests_of(outbox))
            try:
                async for order in call:
                    if order.HasField("welcome"):
                        self.epochs.append(order.welcome.attach_epoch)
                        welcomed.set()
                    else:
                        await self._obey(order, outbox)
                self.ended.put_nowait(None)
            except grpc.aio.AioRpcError as error:
                self.ended.put_nowait(from_rpc_error(error))
            finally:
                welcomed.set()

    async def _requests_of(
        self, outbox: asyncio.Queue[pb.AttachRequest]
    ) -> AsyncIterator[pb.AttachRequest]:
        handles = [self._described(handle) for handle in self.table.live()]
        yield pb.AttachRequest(hello=pb.Hello(engine=engine_to_proto(self.engine), handles=handles))
        while True:
            yield await outbox.get()

    async def _obey(
        self, order: pb.AttachResponse, outbox: asyncio.Queue[pb.AttachRequest]
    ) -> None:
        kind = str(order.WhichOneof("message"))
        answer, changed = self._acted(kind, order)
        self.orders.append(kind)
        await self._answers.wait()
        for handle in changed:
            update = pb.HandleUpdate(handle=self._described(handle))
            outbox.put_nowait(pb.AttachRequest(handle_update=update))
        outbox.put_nowait(answer)

    def _acted(self, kind: str, order: pb.AttachResponse) -> tuple[pb.AttachRequest, list[Handle]]:
        now = self._clock()
        if kind == "acquire":
            result, changed = self._acquired(order.acquire, now)
            return pb.AttachRequest(acquire_result=result), changed
        if kind == "release":
            freed = self.table.release(order.release.handle_ids)
            ids = [handle.handle_id for handle in freed]
            released = pb.ReleaseResult(call_id=order.release.call_id, handle_ids=ids)
            return pb.AttachRequest(release_result=released), freed
        if kind == "renew":
            deadline = now + seconds(order.renew.ttl)
            live = {h.handle_id: h.request_id for h in self.table.live()}
            named = [live[one] for one in order.renew.handle_ids if one in live]
            renewed = [one for r in named if (one := self.table.extend(r, deadline))]
            ids = [handle.handle_id for handle in renewed]
            answer = pb.RenewResult(call_id=order.renew.call_id, handle_ids=ids)
            return pb.AttachRequest(renew_result=answer), renewed
        returned = pb.ReturnResult(call_id=order.return_order.call_id)
        try:
            changed = [self.table.return_claim(order.return_order.claim_id, now)]
        except ContraflowError as error:
            changed = []
            returned.denial.CopyFrom(_denial(error))
        return pb.AttachRequest(return_result=returned), changed

    def _acquired(self, order: pb.Acquire, now: float) -> tuple[pb.AcquireResult, list[Handle]]:
        result = pb.AcquireResult(call_id=order.call_id)
        request = ClaimRequest(
            claim_id=order.claim_id,
            tenant=order.tenant,
            session_key=order.session_key,
            start_by=seconds(order.start_by),
            max_read=seconds(order.max_read),
            message_digests=tuple(order.message_digests),
            hint_handle_id=order.hint_handle_id,
            produced_by_turn_id=order.produced_by_turn_id,
        )
        try:
            handle = self.table.acquire(request, now)
        except ContraflowError as error:
            result.denial.CopyFrom(_denial(error))
            return result, []
        result.grant.handle.CopyFrom(self._described(handle))
        result.grant.transfer_params.CopyFrom(params_to_proto(handle.params))
        result.grant.proof.CopyFrom(proof_to_proto(handle.proof))
        if claim := handle.claim:
            result.grant.start_by.CopyFrom(duration(claim.start_by - now))
            result.grant.hold_until.CopyFrom(duration(claim.hold_until - now))
        return result, [handle]

    def _described(self, handle: Handle) -> handle_pb2.Handle:
        return handle_to_proto(handle, self.engine.engine_id, self._clock())


def _denial(error: ContraflowError) -> pb.Denial:
    return pb.Denial(reason=reason_to_proto(error.reason), message=str(error))


class HealthEndpoint:
    """The HTTP server of an engine that answers ``/health`` only: 503 until ``healthy``."""

    def __init__(self) -> None:
        self.healthy = True
        self.asked = asyncio.Event()
        self.url = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[HealthEndpoint]:
        """Listens on a free port of loopback inside the context."""
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        try:
            yield self
        finally:
            server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        found = head.startswith(b"GET /health ")
        status = b"404 Not Found" if not found else b"200 OK" if self.healthy else b"503 No"
        writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        self.asked.set()
        writer.close()
