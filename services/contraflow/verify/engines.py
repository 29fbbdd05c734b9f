"""Sim engines that are watched: what is read of whom, and whether that was theirs to read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial

from contraflow.core.handle import LIVE, Handle, State
from contraflow.core.transfer_params import OURS
from contraflow.runtime.clock import Clock
from contraflow.sim.api import SimRequest
from contraflow.sim.engine import SimEngine
from contraflow.sim.fabric import Connection, FabricError, Listener, MemoryFabric, Owner
from contraflow.sim.fabric import RemoteBlock as Remote
from contraflow.sim.http.server import EngineServer
from contraflow.sim.http.serving import ServedModel
from contraflow.sim.options import SimOptions
from contraflow.sim.transfer import Pull, remote_ids
from contraflow.verify.http import Endpoint
from contraflow.verify.link import MemoryLink
from contraflow.verify.net import Net, Part

_READER: ContextVar[Read | None] = ContextVar("reader", default=None)
Violated = Callable[[str, str], None]
Heard = Callable[[str, State | None, Handle], None]


TRANSITIONS: frozenset[tuple[State | None, State]] = frozenset({
    (None, State.RETAINED),
    (State.RETAINED, State.RETAINED),  # renewed
    (State.CLAIMED, State.CLAIMED),  # the same claim, asked for once more
    (State.RETAINED, State.CLAIMED),
    (State.RETAINED, State.RELEASED),
    (State.RETAINED, State.EXPIRED),
    (State.CLAIMED, State.RETAINED),
    (State.CLAIMED, State.READ),
    (State.CLAIMED, State.LAPSED),
    (State.CLAIMED, State.RELEASED),  # returned, when a newer one covered it or nobody wants it
})  # fmt: skip


@dataclass(slots=True)
class Read:
    """One read of remote blocks as it happened."""

    pull: Pull
    salt: str
    freed: bool = False
    foreign: bool = False
    owners: list[str] = field(default_factory=list)


class Engine(SimEngine):
    """A SimEngine whose reads are checked by those who know better than it does."""

    def watched(self, net: Net, fabric: Fabric, violated: Violated, heard: Heard) -> None:
        """Say what is wrong with a read to ``violated``, by invariant and text, and what becomes
        of handles to ``heard``, with the state before."""
        tell, states = self.retained._tell, dict[str, State]()

        def told(handle: Handle) -> None:
            before, after = states.pop(handle.handle_id, None), handle.state
            if after in LIVE:
                states[handle.handle_id] = after
            heard(self.engine_id, before, handle)
            tell(handle)

        self.retained._tell = told  # type: ignore[method-assign]
        self._net = net
        self._watching = fabric
        self._violated = violated
        self._started_reads = fabric.started_reads
        fabric.engines[self.engine_id] = self

    def holder(self, request_id: str) -> tuple[set[int], str] | None:
        """Blocks that a finished request holds, and its salt; None if they are free."""
        blocks = self._scheduler.held.get(request_id)
        if blocks is None:
            return None
        return {block.block_id for block in blocks}, self._watching.salts.get(request_id, "")

    def generate(self, request: SimRequest):  # type: ignore[no-untyped-def]
        self._watching.salts[request.request_id] = request.cache_salt
        params = request.kv_transfer_params or {}
        if params and OURS not in params:
            self._violated("CLIENT_PARAMS", f"{request.request_id} came with {params}")
        return super().generate(request)

    def live(self) -> list[Handle]:
        """Live handles."""
        return self.retained._table.live()

    def idle(self) -> list[str]:
        """What is not as it should be once everything has ended."""
        scheduler, wrong = self._scheduler, []
        for name in ("waiting", "running", "pulling", "held", "landed"):
            if left := len(getattr(scheduler, name)):
                wrong.append(f"{left} {name}")
        if (missing := self.pool.capacity - self.pool.num_free) != 0:
            wrong.append(f"{missing} blocks in use")
        if left := len(self.live()):
            wrong.append(f"{left} live handles")
        return wrong

    async def _pull(self, pull: Pull) -> None:
        read = Read(pull, pull.seq.request.cache_salt)
        token = _READER.set(read)
        try:
            landing = await self._puller.run(pull)
        finally:
            _READER.reset(token)
        handle = f"{pull.params.get('remote_engine_id')}/{pull.params.get('remote_request_id')}"
        if not _is_wanted(pull):
            self._violated("OBEYS_THE_PLAN", f"{handle} was pulled otherwise than was planned")
        if read.owners:
            self._started_reads[handle] = self._started_reads.get(handle, 0) + 1
            if self._started_reads[handle] > 1:
                self._violated("AT_MOST_ONE_READ", f"{handle} was read again")
        if landing.ok and read.freed:
            self._violated("NO_READ_AFTER_FREE", f"{handle} was read after its blocks were free")
        if read.foreign:
            self._violated("NO_OTHER_TENANT", f"{handle} was read by another tenant's request")
        if pull.local_blocks:
            self._scheduler.landed.append(landing)
            self._wake.set()


def _is_wanted(pull: Pull) -> bool:
    told = pull.params.get(OURS)
    if not pull.params.get("do_remote_decode") or told is None:
        return True
    read = len(remote_ids(pull.params))
    return bool(told.get("decision") == "PULL" and read <= told.get("pull_blocks", read))


class Fabric(MemoryFabric):
    """Knows all engines of a world, and fails or delays reads as the weather says."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net
        self.engines: dict[str, Engine] = {}
        self.salts: dict[str, str] = {}
        self.started_reads: dict[str, int] = {}
        self._parts: dict[int, Part] = {}

    def of(self, part: Part) -> _PartFabric:
        """The fabric as an engine of this process sees it."""
        return _PartFabric(self, part)


class _PartFabric:
    def __init__(self, fabric: Fabric, part: Part) -> None:
        self._fabric = fabric
        self._part = part

    async def serve(self, owner: Owner, host: str, port: int) -> Listener:
        listener = await self._fabric.serve(owner, host, port)
        self._fabric._parts[id(owner)] = self._part
        return listener

    async def connect(self, host: str, port: int) -> Connection:
        fabric, net = self._fabric, self._fabric.net
        connection = await fabric.connect(host, port)
        owner = fabric.owners[host, port]
        other = fabric._parts[id(owner)]
        if _READER.get() is not None:
            # Heartbeats are not delayed: nobody acknowledges them, and one that is on its way
            # for longer than a quarter of what it gives may come too late unnoticed.
            await net.travel(self._part.name, other.name)
        cut = frozenset((self._part.name, other.name)) in net.cuts
        if not other.alive or cut:
            raise FabricError("nobody answers there")
        return _Watched(fabric, connection, (host, port), other)


class _Watched:
    """A connection that looks at every read with the owner's own eyes."""

    def __init__(
        self, fabric: Fabric, connection: Connection, address: tuple[str, int], part: Part
    ) -> None:
        self.hello = connection.hello
        self._part = part
        self._fabric = fabric
        self._inner = connection
        self._address = address

    async def read(self, block_ids: Sequence[int]) -> list[Remote]:
        net, read = self._fabric.net, _READER.get()
        if net.happens(net.weather.fail_read, "READ_FAILED"):
            raise FabricError("the read has failed")
        if net.happens(net.weather.slow_read, "READ_SLOW"):
            await asyncio.sleep(net.random.random() * 20.0)
        contents = await self._inner.read(block_ids)
        owner = self._fabric.owners[self._address]
        if read is not None and isinstance(owner, Engine):
            read.owners.append(owner.engine_id)
            held = owner.holder(str(read.pull.params["remote_request_id"]))
            read.freed = held is None or not held[0].issuperset(block_ids)
            read.foreign = held is not None and held[1] != read.salt
        return contents

    async def notify(self, request_id: str) -> None:
        net = self._fabric.net
        if self._part.alive and not net.happens(net.weather.lose, "NOTICE_LOST"):
            await self._inner.notify(request_id)

    async def heartbeat(self, request_ids: Sequence[str]) -> None:
        # Not lost: what carries it is what the read goes over, and breaks with it.
        if self._part.alive:
            await self._inner.heartbeat(request_ids)

    async def close(self) -> None:
        await self._inner.close()


class EngineProcess:
    """An endpoint with one engine for each data-parallel rank."""

    def __init__(
        self,
        net: Net,
        fabric: Fabric,
        options: Sequence[SimOptions],
        clock: Clock,
        violated: Violated,
        heard: Heard,
        new_id: Callable[[], str],
        fixed_id: bool,
    ) -> None:
        self.part = Part(options[0].engine_id)
        self.endpoint = options[0].endpoint
        self._net = net
        self._fabric = fabric
        self.engines: list[Engine] = []
        for one in options:
            engine = Engine(
                one, clock=clock, fabric=fabric.of(self.part),
                instance="fixed" if fixed_id else new_id(),
                make_link=partial(MemoryLink, net, self.part, one.agent),
            )  # fmt: skip
            if fixed_id:
                # As where an operator has given vLLM an engine id, without our connector's help.
                engine.description = one.describe(engine.engine_id, boot_nonce=new_id())
            engine.watched(net, fabric, violated, heard)
            self.engines.append(engine)

    async def start(self) -> None:
        """Step, attach and serve."""
        for engine in self.engines:
            await self.part.spawn(engine.start())
        options = self.engines[0].options
        model = ServedModel(
            names=options.served_model_names,
            max_model_len=options.max_model_len,
            vllm_version=f"{options.vllm_version}.0",
        )
        server = EngineServer(model, self.engines)
        self._net.listeners[self.endpoint] = Endpoint(self.part, server.handle)

    def gone(self) -> None:
        """It has died, and its memory with it."""
        for address, owner in list(self._fabric.owners.items()):
            if owner in self.engines:
                del self._fabric.owners[address]
