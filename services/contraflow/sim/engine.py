"""SimEngine: steps, the side channel, and the link to the agent."""

from __future__ import annotations

import asyncio
import heapq
import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from collections.abc import Sequence as AbstractSequence
from typing import Any

from contraflow.core import fleet
from contraflow.core.handle import ClaimRequest, Handle
from contraflow.core.transfer_params import Params
from contraflow.runtime.clock import Clock, happens
from contraflow.sim.api import SimCounters, SimOutput, SimRequest
from contraflow.sim.fabric import Fabric, FabricError, Hello, Listener, RemoteBlock
from contraflow.sim.kv_events import OnKvEvent
from contraflow.sim.options import SimOptions
from contraflow.sim.pool import Pool
from contraflow.sim.puller import EXPIRY_MARGIN_SECONDS, Puller
from contraflow.sim.scheduler import Scheduler
from contraflow.sim.sequence import Sequence, Status
from contraflow.sim.transfer import (
    REGISTRATION_GENERATION,
    Pull,
    Transfer,
    lease_of,
    remote_address,
)
from contraflow_connector.decisions import AgentLink
from contraflow_connector.holds import Heartbeats
from contraflow_connector.link import Link
from contraflow_connector.orders import claimed_params
from contraflow_connector.renewals import Answer
from contraflow_connector.retained import Retained

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05
"""Between looks whether an engine that shuts down has anything left to do."""

Offer = Callable[[Handle], Params]
MakeLink = Callable[[fleet.Engine, Retained, Offer], AgentLink | None]


def offer(handle: Handle) -> Params:
    """The parameters of a claimed handle as its reader shall get them."""
    return claimed_params(handle, EXPIRY_MARGIN_SECONDS)


class SimEngine:
    """Satisfies ``contraflow.sim.api.Engine`` and ``contraflow.sim.fabric.Owner``.

    ``make_link`` replaces the gRPC link to ``options.agent``; ``instance`` is the suffix of
    the engine id, random if empty. All methods but those of ``retained`` belong to the
    event loop that runs ``start``.
    """

    def __init__(
        self,
        options: SimOptions,
        *,
        clock: Clock,
        fabric: Fabric,
        on_kv_event: OnKvEvent = lambda event: None,
        make_link: MakeLink | None = None,
        instance: str = "",
    ) -> None:
        instance = instance or uuid.uuid4().hex
        self.options = options
        self.engine_id = f"{options.engine_id}-{instance}"
        self.description = options.describe(self.engine_id, boot_nonce=instance)
        self.retained = _Retained(clock.now, self._look_again_at)
        self.pool = Pool(options.num_blocks, options.block_size, on_kv_event)
        self._clock = clock
        self._fabric = fabric
        self._counters = SimCounters()
        self._transfer: Transfer | None = None
        if not options.reference:
            self._transfer = Transfer(
                options, self.engine_id, self.pool, self.retained, self._counters
            )
            self._transfer.start_pull = self._start_pull
        self._scheduler = Scheduler(options, self.pool, self._transfer, self._counters)
        self._heartbeats = Heartbeats()
        self._puller = Puller(options, fabric, clock, self._counters, self._heartbeats)
        self._make_link = make_link or _grpc_link(options.agent)
        self._link: AgentLink | None = None
        self._listener: Listener | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._alarms: list[float] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._heart: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._stopping = False

    @property
    def counters(self) -> SimCounters:
        """Counts since the start, and what is so now."""
        counts, scheduler = self._counters, self._scheduler
        counts.requests_running = len(scheduler.running)
        counts.requests_waiting = len(scheduler.waiting) + len(scheduler.pulling)
        counts.kv_cache_usage = 1 - self.pool.num_free / self.pool.capacity
        return counts

    async def start(self) -> None:
        """Begin to step, serve the side channel and attach to the agent."""
        self._loop = asyncio.get_running_loop()
        options = self.options
        if self._transfer is not None:
            port = options.side_port and options.side_port + options.dp_rank
            self._listener = await self._fabric.serve(self, options.side_host, port)
            self._transfer.side_channel = (self._listener.host, self._listener.port)
            self._link = self._make_link(self.description, self.retained, offer)
            if self._link is not None:
                self._transfer.use_link(self._link)
                self._link.start()
        self._spawn(self._run())

    async def shut_down(self, timeout: float) -> None:
        """As vLLM, which goes on answering: what comes from now on is aborted at once; what runs
        may end, and blocks be read, within ``timeout`` seconds."""
        self._stopping = True
        until = self._clock.now() + timeout
        while (left := until - self._clock.now()) > 0 and self._scheduler.has_work:
            await self._clock.sleep(min(_LOOK_SECONDS, left))
        for seq in self._scheduler.live():
            self._scheduler.abort(seq)
        self._wake.set()

    async def close(self) -> None:
        """Abort everything and let go of all sockets and threads."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._failure = RuntimeError("the engine is closed")
        for seq in self._scheduler.live():
            seq.status = Status.FINISHED
            seq.outputs.put_nowait(SimOutput([], "abort"))
        if self._listener is not None:
            await self._listener.close()
        if self._link is not None:
            await asyncio.to_thread(self._link.close)

    def generate(self, request: SimRequest) -> AsyncGenerator[SimOutput, None]:
        """Run a request from the first ``anext`` on. Closing the iterator aborts it.

        Raises ValueError for a prompt that does not fit. The iterator raises once the engine
        is closed, or has died.
        """
        self._scheduler.check(request)
        return self._outputs(request)

    def clear_prefix_cache(self) -> None:
        """Forget what could be found; blocks in use stay."""
        self.pool.clear()

    async def _outputs(self, request: SimRequest) -> AsyncGenerator[SimOutput, None]:
        if self._failure is not None:
            raise self._failure
        if self._stopping:
            yield SimOutput([], "abort")
            return
        seq = self._scheduler.add(request)
        self._wake.set()
        self._keep_leases()
        try:
            while True:
                output = await seq.outputs.get()
                if isinstance(output, Exception):
                    raise output
                yield output
                if output.finish_reason is not None:
                    return
        finally:
            self._scheduler.abort(seq)
            self._wake.set()

    # Steps.

    async def _run(self) -> None:
        try:
            while True:
                self._wake.clear()
                batch = self._scheduler.schedule()
                freed = self._scheduler.free_held()
                if batch:
                    await self._clock.sleep(self._cost(batch))
                    self._scheduler.complete(batch)
                elif not freed:
                    await self._rest()
        except Exception as error:
            log.exception("the engine has died")
            self._failure = error
            for seq in self._scheduler.live():
                seq.outputs.put_nowait(error)

    def _cost(self, batch: list[Sequence]) -> float:
        costs = self.options.costs
        seconds = 0.0
        decodes = False
        for seq in batch:
            missing = len(seq.all_token_ids) - seq.computed
            if seq.output and missing == 1:
                decodes = True
            else:
                seconds += costs.prefill(seq.computed, seq.computed + missing)
        return seconds + (costs.decode_step if decodes else 0.0)

    async def _rest(self) -> None:
        """Until something happens, or blocks or a claim expire."""
        while self._alarms and self._alarms[0] <= self._clock.now():
            heapq.heappop(self._alarms)
        until = min(self._alarms[:1], default=float("inf"))
        if self._transfer is not None:
            until = min(until, self._transfer.deadline())
        if until < float("inf"):
            await happens(self._wake, self._clock, max(0.0, until - self._clock.now()))
        else:
            await self._wake.wait()

    def _look_again_at(self, instant: float) -> None:
        """Called by whoever changes the handle table, from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._set_alarm, instant)

    def _set_alarm(self, instant: float) -> None:
        heapq.heappush(self._alarms, instant)
        self._wake.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Reading.

    def _start_pull(self, pull: Pull) -> None:
        self._spawn(self._pull(pull))

    async def _pull(self, pull: Pull) -> None:
        landing = await self._puller.run(pull)
        if pull.local_blocks:
            self._scheduler.landed.append(landing)
            self._wake.set()

    def _keep_leases(self) -> None:
        waiting = self._transfer is not None and self._transfer.heartbeats
        if waiting and (self._heart is None or self._heart.done()):
            self._heart = self._spawn(self._beat())

    async def _beat(self) -> None:
        assert self._transfer is not None
        while self._transfer.heartbeats:
            await self._clock.sleep(self.options.kv_lease / 6)
            waiting = list(self._transfer.heartbeats.values())
            self._heartbeats.keep({lease_of(params) for params in waiting})
            for params in waiting:
                engine_id, request_id = lease_of(params)
                try:
                    connection = await self._fabric.connect(*remote_address(params))
                    if connection.hello.engine_id == engine_id:
                        now = self._clock.now()
                        await connection.heartbeat([request_id])
                        self._heartbeats.sent([(engine_id, request_id)], now)
                    await connection.close()
                except FabricError as error:
                    log.debug("no heartbeat for %s: %s", request_id, error)

    # What others read here.

    def hello(self) -> Hello:
        """As Owner.hello."""
        return Hello(
            self.engine_id,
            self.options.compatibility_class,
            REGISTRATION_GENERATION,
            self._clock.now(),
        )

    def read(self, block_ids: AbstractSequence[int]) -> list[RemoteBlock]:
        """As Owner.read."""
        if not all(0 <= block_id < len(self.pool.blocks) for block_id in block_ids):
            raise FabricError("there is no such block")
        blocks = [self.pool.blocks[block_id] for block_id in block_ids]
        return [
            RemoteBlock(block.generation, block.content.seed, list(block.content.tokens))
            for block in blocks
        ]

    def notified(self, request_id: str) -> None:
        """As Owner.notified."""
        if self._transfer is not None:
            self._transfer.notified(request_id)
            self._wake.set()

    def heartbeat(self, request_ids: AbstractSequence[str]) -> None:
        """As Owner.heartbeat."""
        if self._transfer is not None:
            self._transfer.heartbeat(request_ids)


class _Retained(Retained):
    """Wakes a resting engine for orders from outside its loop."""

    def __init__(self, clock: Callable[[], float], look_again_at: Callable[[float], None]) -> None:
        super().__init__(clock)
        self._look_again_at = look_again_at

    def acquire(self, request: ClaimRequest) -> Handle:
        handle = super().acquire(request)
        if handle.claim is not None:
            self._look_again_at(handle.claim.hold_until)
        return handle

    def return_claim(self, claim_id: str) -> None:
        super().return_claim(claim_id)
        self._look_again_at(self.clock())

    def release(self, handle_ids: Iterable[str]) -> list[str]:
        freed = super().release(handle_ids)
        self._look_again_at(self.clock())
        return freed

    def renew(self, handle_ids: Iterable[str], ttl: float, answer: Answer) -> None:
        super().renew(handle_ids, ttl, answer)
        self._look_again_at(self.clock())


def _grpc_link(agent: str) -> MakeLink:
    def make(engine: fleet.Engine, retained: Retained, offer: Offer) -> AgentLink | None:
        return Link(agent, engine, retained, offer) if agent else None

    return make
