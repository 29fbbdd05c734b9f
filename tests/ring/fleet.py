"""The running fleet: started and stopped, its parts harmed, its insides asked for."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import aiohttp
import grpc

from contraflow.cli.deployment import control_plane
from contraflow.cli.deployment.metrics import Samples, parse_samples
from contraflow.cli.deployment.supervisor import Supervisor
from contraflow.v1 import agent_service_pb2 as agent_pb
from contraflow.v1 import router_service_pb2 as router_pb
from contraflow.v1.agent_service_pb2_grpc import AgentServiceStub
from contraflow.v1.router_service_pb2_grpc import RouterServiceStub
from tests.ring.etcd import EtcdMember
from tests.ring.history import Harm
from tests.ring.layout import (
    AGENTS,
    CLIENT,
    DIRECTORIES,
    ENGINES,
    ETCDS,
    HOSTS,
    NODES,
    PARTS,
    ROUTERS,
    Layout,
)
from tests.ring.network import Network
from tests.ring.relay import relayed
from tests.support.wait import until_good

_START_SECONDS = 60.0
_GRACE_SECONDS = 20.0
_CALL_SECONDS = 5.0


class Fleet:
    """``async with running_fleet(folder) as fleet``. Whatever it is asked, the answer comes over
    a socket of the client's host."""

    def __init__(self, network: Network, supervisor: Supervisor, folder: Path) -> None:
        self.network = network
        self.layout = Layout(network, folder)
        self.folder = folder
        self.test = ""
        """What it is used for now; also the seed of what is said to it."""
        self.harms: list[Harm] = []
        """What has been done to parts, in order."""
        self.targets: dict[str, str] = {}
        """gRPC targets of directories, agents and routers, for this process."""
        connector = aiohttp.TCPConnector(
            limit=0, force_close=True, socket_factory=lambda info: network.socket(CLIENT, *info[:3])
        )
        self.http = aiohttp.ClientSession(connector=connector)
        self.etcds = {one: EtcdMember(self.http, self.layout.http(one)) for one in ETCDS}
        self._supervisor = supervisor
        self._death = asyncio.ensure_future(supervisor.death())

    async def close(self) -> None:
        """Ask nothing more."""
        self._death.cancel()
        await self.http.close()

    # Harm.

    async def kill(self, *parts: str) -> None:
        """SIGKILL."""
        with self._harm("killed", *parts):
            for part in parts:
                await self._supervisor.kill(part)

    async def stop(self, part: str) -> None:
        """As an operator does."""
        with self._harm("stopped", part):
            await self._supervisor.stop(part)

    async def start(self, *parts: str) -> None:
        """Start parts that do not run, and wait until they serve."""
        for part in parts:
            await self._supervisor.start(self.layout.process(part))
        for part in parts:
            await self._supervisor.until(partial(self.serves, part), part, _START_SECONDS)

    async def drain(self, engine: str) -> None:
        """Take an engine out of service, and wait until every router knows."""
        engine_id = (await self.engine_ids())[engine]
        request = agent_pb.DrainEngineRequest(engine_id=engine_id, draining=True)
        async with self.dialled(f"agent-{engine[-1]}") as channel:
            await AgentServiceStub(channel).DrainEngine(request, timeout=_CALL_SECONDS)

        async def unaware() -> list[str]:
            return [router for router in ROUTERS if not await self._drains(engine_id, router)]

        await until_good(unaware, lambda routers: not routers)

    async def _drains(self, engine_id: str, router: str) -> bool:
        request = router_pb.ListViewEnginesRequest()
        async with self.dialled(router) as channel:
            view = await RouterServiceStub(channel).ListViewEngines(request, timeout=_CALL_SECONDS)
        return any(one.draining for one in view.engines if one.engine_id == engine_id)

    @contextmanager
    def paused(self, *parts: str) -> Iterator[None]:
        """SIGSTOP, and at the end SIGCONT."""
        with self._harm("paused", *parts):
            for part in parts:
                self._supervisor.get(part).signal(signal.SIGSTOP)
            try:
                yield
            finally:
                for part in parts:
                    self._supervisor.get(part).signal(signal.SIGCONT)

    @contextmanager
    def _harm(self, what: str, *parts: str) -> Iterator[None]:
        began = monotonic()
        try:
            yield
        finally:
            self.harms += [Harm(what, part, began, monotonic()) for part in parts]

    # Questions.

    def dialled(self, part: str) -> grpc.aio.Channel:
        """A channel to a directory, agent or router; to be closed."""
        options = [("grpc.enable_http_proxy", 0)]
        return grpc.aio.insecure_channel(self.targets[part], options=options)

    async def serves(self, part: str) -> bool:
        """Whether it says that it is healthy."""
        if part in self.targets:
            return await control_plane.is_serving(self.targets[part])
        try:
            timeout = aiohttp.ClientTimeout(total=2)
            async with self.http.get(f"{self.layout.http(part)}/health", timeout=timeout) as answer:
                return answer.status == 200 and await self._etcd_serves(part)
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    async def _etcd_serves(self, part: str) -> bool:
        return part not in ETCDS or (await self.etcds[part].status()).leader != 0

    async def engine_ids(self) -> dict[str, str]:
        """Incarnations that are attached to an agent, by name of the engine."""
        places = {self.layout.http(engine): engine for engine in ENGINES}
        ids = {}
        for agent in AGENTS:
            for one in await control_plane.attached_engines(self.targets[agent]):
                ids[places[one.engine.endpoint]] = one.engine.engine_id
        return ids

    async def metrics(self, engine: str) -> Samples:
        """What an engine counts."""
        async with self.http.get(f"{self.layout.http(engine)}/metrics") as answer:
            return parse_samples(await answer.text())

    async def records(self) -> set[str]:
        """All keys in etcd, as of one member that has its quorum."""
        for member in self.etcds.values():
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                return await member.keys()
        raise AssertionError("no member of etcd answers")

    async def etcd_leader(self) -> tuple[str, list[str]]:
        """The leader, and the other members."""

        async def leader() -> str:
            for name, member in self.etcds.items():
                with suppress(aiohttp.ClientError, OSError, TimeoutError):
                    status = await member.status()
                    if status.member == status.leader:
                        return name
            return ""

        name = await until_good(leader, bool)
        return name, [one for one in ETCDS if one != name]

    async def views(self) -> list[list[str]]:
        """Engines that each router knows."""
        return [sorted(await control_plane.engines_in_view(self.targets[one])) for one in ROUTERS]

    async def until_settled(self, within: float = _START_SECONDS) -> None:
        """Everything serves, every engine is attached, and every router knows just those."""

        async def unsettled() -> dict[str, Any]:
            silent = [part for part in PARTS if not await self.serves(part)]
            ids = await self.engine_ids()
            views = await self.views()
            wrong = [view for view in views if view != sorted(ids.values())]
            missing = sorted(set(ENGINES) - set(ids))
            told = {"silent": silent, "not attached": missing, "views": wrong}
            return {what: which for what, which in told.items() if which}

        await until_good(unsettled, lambda left: not left, within)
        if self._death.done():
            raise self._death.result()

    def router_turns(self) -> list[dict[str, Any]]:
        """What the routers have logged of turns."""
        lines = [
            line
            for router in ROUTERS
            for line in (self.folder / f"{router}.log").read_text().splitlines()
            if '"turn_finished"' in line
        ]
        turns = []
        for line in lines:
            with suppress(json.JSONDecodeError):  # cut off by a kill
                turns.append(json.loads(line))
        return turns


@asynccontextmanager
async def running_fleet(folder: Path) -> AsyncIterator[Fleet]:
    """A fleet that is settled; all of it ends with the context."""
    aliases = list(zip(AGENTS, NODES, strict=True))
    async with AsyncExitStack() as stack:
        network = stack.enter_context(Network(HOSTS, aliases))
        supervisor = await stack.enter_async_context(Supervisor(folder, grace=_GRACE_SECONDS))
        fleet = Fleet(network, supervisor, folder)
        stack.push_async_callback(fleet.close)
        for part in (*DIRECTORIES, *AGENTS, *ROUTERS):
            target = folder / f"{part}.sock"
            address = fleet.layout.grpc(part)
            await stack.enter_async_context(relayed(network, address, target))
            fleet.targets[part] = f"unix:{target}"
        for parts in (ETCDS, DIRECTORIES, AGENTS, ROUTERS, ENGINES):
            await fleet.start(*parts)
        await fleet.until_settled()
        yield fleet
