"""A fleet in one process: parts that can be killed and started anew, by name."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Set
from random import Random
from typing import Protocol

from contraflow.agent.config import ClaimConfig, RetentionConfig
from contraflow.core.fleet import Role
from contraflow.core.handle import Handle, State
from contraflow.router.config import RouterConfig, TenantConfig
from contraflow.runtime.address import Address
from contraflow.verify.clock import PartClock
from contraflow.verify.engines import TRANSITIONS, EngineProcess, Fabric
from contraflow.verify.net import Net, Part, Weather, own_tasks
from contraflow.verify.parts import AgentProcess, DirectoryProcess, RouterProcess
from contraflow.verify.shape import AGENTS, DIRECTORIES, TENANTS, Shape, draw
from contraflow.verify.store import SharedStore
from contraflow.verify.whims import Whims

SECRET = b"a secret of the verified cluster"


class Process(Protocol):
    """Whatever can be started and killed."""

    part: Part

    async def start(self) -> None: ...


class World:
    """Everything of one run. ``violations``: what did not hold, by invariant."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.shape: Shape = draw(self.random)
        self.net = Net(self.random)
        self.net.calm = self.net.weather = Weather(slow_read=self.shape.slow_reads)
        self.fabric = Fabric(self.net)
        self.violations: list[tuple[str, str]] = []
        self.seen: Counter[str] = Counter()
        """How often what happened, faults aside."""
        self.whims = Whims(seed, self.seen)
        self.store = SharedStore(self.net, PartClock())
        self.processes: dict[str, Process] = {}
        self._makers: dict[str, Callable[[], Process]] = {}
        self._clocks: dict[str, PartClock] = {}
        self.expired: deque[tuple[str, Handle]] = deque(maxlen=20)
        """Engine ids and handles whose leases have run out lately."""
        self.down: Counter[str] = Counter()
        """Decode engines that are dead, or so lately alive again that not everybody knows."""
        self.decode_trouble_at = -1.0
        """When a decode engine last came, went or was drained."""
        self._make_all()

    def violated(self, invariant: str, what: str) -> None:
        """Something that must hold does not."""
        self.violations.append((invariant, f"at {asyncio.get_running_loop().time():.3f} s: {what}"))

    def new_id(self) -> str:
        """32 hex digits."""
        return f"{self.random.getrandbits(128):032x}"

    async def start(self) -> None:
        """Start all parts; returns once the routers know the fleet."""
        own_tasks(asyncio.get_running_loop())
        for name in self._makers:
            await self.launch(name)

    async def launch(self, name: str) -> None:
        """Start a part, for the first time or again."""
        process = self.processes[name] = self._makers[name]()
        await process.start()

    async def shut_down(self, name: str, timeout: float) -> None:
        """Let an engine process end what runs, as a signal does."""
        process = self.processes[name]
        assert isinstance(process, EngineProcess)
        ends = [process.part.spawn(one.shut_down(timeout)) for one in process.engines]
        await asyncio.wait(ends)

    async def kill(self, name: str) -> None:
        """End a part at once."""
        process = self.processes[name]
        if isinstance(process, EngineProcess):
            process.gone()
            for engine in process.engines:
                for handle in engine.live():
                    self.seen[f"handle {handle.state} -> LOST"] += 1
        await self.processes[name].part.kill()

    async def close(self) -> None:
        """End everything."""
        for process in self.processes.values():
            await process.part.kill()
        await self.store.part.kill()

    def named(self, kind: str) -> list[str]:
        """Parts of a kind: router, agent, directory, prefill or decode."""
        return [name for name in self._makers if name.startswith(kind)]

    def routers(self, *, healthy: bool = True) -> list[RouterProcess]:
        """Those that live; with ``healthy`` those that a load balancer would send turns to."""
        found = [self.processes[name] for name in self.named("router")]
        alive = [one for one in found if isinstance(one, RouterProcess) and one.part.alive]
        return [one for one in alive if not healthy or one.healthy()]

    def engines(self) -> list[EngineProcess]:
        """Those that live."""
        return [
            one
            for one in self.processes.values()
            if isinstance(one, EngineProcess) and one.part.alive
        ]

    def a_decode_engine_is_unheard_of(self, heard: Set[str]) -> bool:
        """Whether one lives of which the holder of ``heard`` never knew."""
        return any(
            engine.options.role is Role.DECODE and engine.engine_id not in heard
            for process in self.engines()
            for engine in process.engines
        )

    def holds_claims(self, name: str) -> bool:
        """Whether somebody may be reading from an engine process."""
        process = self.processes[name]
        return isinstance(process, EngineProcess) and any(
            handle.claim is not None for engine in process.engines for handle in engine.live()
        )

    def agents(self) -> list[AgentProcess]:
        """Those that live."""
        return [
            one
            for one in self.processes.values()
            if isinstance(one, AgentProcess) and one.part.alive
        ]

    def clock(self, name: str) -> PartClock:
        """The clock of the machine on which a part runs; it outlives the part."""
        if name not in self._clocks:
            shape = self.shape
            self._clocks[name] = PartClock(
                self.random.uniform(0, shape.clock_offsets),
                self.random.uniform(-shape.wall_skew, shape.wall_skew),
            )
        return self._clocks[name]

    def trouble(self) -> None:
        """A decode engine comes, goes or is drained: a turn may find none. It needs no other."""
        self.decode_trouble_at = asyncio.get_running_loop().time()

    def _told(self, engine_id: str, before: State | None, handle: Handle) -> None:
        self.seen[f"handle {before or 'NEW'} -> {handle.state}"] += 1
        if handle.state is State.EXPIRED:
            self.expired.append((engine_id, handle))
        if (before, handle.state) not in TRANSITIONS:
            self.violated("LIFE_OF_A_HANDLE", f"{handle.handle_id}: {before} -> {handle.state}")

    def _defect(self, method: str, error: Exception) -> None:
        self.violated("NO_CRASH", f"{method}: {error!r}")
        logging.getLogger(__name__).error("defect in %s", method, exc_info=error)

    async def _healthy(self, endpoint: str) -> bool:
        await self.net.travel()
        return endpoint in self.net.listeners and self.net.listeners[endpoint].part.alive

    def _make_all(self) -> None:
        shape = self.shape
        for number, address in enumerate(DIRECTORIES, 1):
            self._makers[f"directory-{number}"] = self._directory(f"directory-{number}", address)
        for number, address in enumerate(AGENTS, 1):
            self._makers[f"agent-{number}"] = self._agent(f"agent-{number}", address)
        for ranks in shape.engines:
            name = ranks[0].engine_id.removesuffix("-dp0")
            self._makers[name] = lambda ranks=ranks, name=name: EngineProcess(  # type: ignore[misc]
                self.net,
                self.fabric,
                ranks,
                self.clock(name),
                self.violated,
                self._told,
                self.new_id,
                name in shape.fixed_ids,
            )
        for number in range(1, shape.routers + 1):
            self._makers[f"router-{number}"] = self._router(f"router-{number}")

    def _directory(self, name: str, address: str) -> Callable[[], Process]:
        return lambda: DirectoryProcess(
            name, address, self.net, self.store, self.clock(name), self._defect
        )

    def _agent(self, name: str, address: str) -> Callable[[], Process]:
        shape = self.shape
        retention = RetentionConfig(shape.budget_share, shape.retention_ttl, shape.max_idle)
        claim = ClaimConfig(start_by_seconds=shape.start_by, max_read_seconds=shape.max_read)
        return lambda: AgentProcess(
            name, address, list(DIRECTORIES), self.net, self.clock(name), retention, claim,
            self._healthy, self._defect,
        )  # fmt: skip

    def _router(self, name: str) -> Callable[[], Process]:
        config = RouterConfig(
            listen=Address.parse("127.0.0.1:8080"),
            grpc_listen=Address.parse("127.0.0.1:8081"),
            directory=tuple(Address.parse(one) for one in DIRECTORIES),
            cluster_secret=SECRET.decode(),
            tenants={tenant: TenantConfig((key,)) for tenant, key in TENANTS.items()},
            recompute_threshold_tokens=4,
            decode_only_below_tokens=self.shape.decode_only_below,
            claim_start_by_seconds=self.shape.start_by,
            acquire_deadline_seconds=0.25,
        )
        return lambda: RouterProcess(
            name, config, self.net, self.clock(name), self.new_id, self._defect, self.whims.use
        )
