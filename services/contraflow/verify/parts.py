"""The services as processes: made of the same objects as the real ones, joined without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any, cast

from prometheus_client import CollectorRegistry

from contraflow.agent.config import AgentConfig, ClaimConfig, RetentionConfig
from contraflow.agent.parts import AgentParts
from contraflow.core.fleet import Role
from contraflow.core.handle_use import DecideUse
from contraflow.directory.app import Directory
from contraflow.directory.config import LimitsConfig, LivenessConfig
from contraflow.directory.feed import follow_store
from contraflow.directory.records import Records
from contraflow.directory.servicer import DirectoryServicer
from contraflow.directory.view import View
from contraflow.router.app import RouterApp
from contraflow.router.config import RouterConfig
from contraflow.router.planning import missing_roles
from contraflow.runtime.address import Address
from contraflow.runtime.backoff import Backoff
from contraflow.runtime.clock import Clock
from contraflow.runtime.directory_client import DirectoryClient
from contraflow.runtime.fleet_replica import FleetReplica
from contraflow.v1.agent_service_pb2_grpc import add_AgentServiceServicer_to_server
from contraflow.v1.directory_service_pb2_grpc import add_DirectoryServiceServicer_to_server
from contraflow.v1.router_service_pb2_grpc import add_RouterServiceServicer_to_server
from contraflow.verify.http import Client
from contraflow.verify.link import LinkServer
from contraflow.verify.net import Net, Part
from contraflow.verify.rpc import Server, dial
from contraflow.verify.store import SharedStore

Defect = Callable[[str, Exception], None]
PREFIX = "contraflow"


class DirectoryProcess:
    """One replica."""

    def __init__(
        self, name: str, address: str, net: Net, store: SharedStore, clock: Clock, defect: Defect
    ) -> None:
        self.part = Part(name)
        self.address = address
        self._net = net
        view = View(max_history=2_000)
        records = Records(PREFIX, clock)
        directory = Directory(
            store, view, records, clock,
            liveness=LivenessConfig(), limits=LimitsConfig(), progress_seconds=5.0,
        )  # fmt: skip
        self._server = Server(self.part, defect)
        add_DirectoryServiceServicer_to_server(
            DirectoryServicer(directory, clock), cast(Any, self._server)
        )
        self._follow = partial(
            follow_store, store, records, view, clock, lambda: Backoff(draw=net.random.random)
        )

    async def start(self) -> None:
        """Follow the store and serve."""
        self.part.spawn(self._follow())
        self._net.listeners[self.address] = self._server


class AgentProcess:
    """The agent of one node."""

    def __init__(
        self,
        name: str,
        address: str,
        directory: list[str],
        net: Net,
        clock: Clock,
        retention: RetentionConfig,
        claim: ClaimConfig,
        healthy: Callable[[str], Awaitable[bool]],
        defect: Defect,
    ) -> None:
        self.part = Part(name)
        self.address = address
        self.link_address = f"unix:/{name}"
        self._net = net
        self._clock = clock
        self._defect = defect
        self._make = partial(self._parts, directory, retention, claim, healthy)
        self.parts: AgentParts | None = None

    def _parts(
        self,
        directory: list[str],
        retention: RetentionConfig,
        claim: ClaimConfig,
        healthy: Callable[[str], Awaitable[bool]],
    ) -> AgentParts:
        config = AgentConfig(
            listen=Address.parse(self.address),
            link_socket=Address.parse(self.link_address),
            directory=[Address.parse(one) for one in directory],
            retention=retention,
            claim=claim,
        )
        client = directory_client(self._net, self.part, directory, self._clock)
        return AgentParts(config, client, self._clock, CollectorRegistry(), healthy)

    async def start(self) -> None:
        """Serve engines, routers and operators."""
        self.parts = self._make()
        server = Server(self.part, self._defect)
        add_AgentServiceServicer_to_server(self.parts.servicer, cast(Any, server))
        self.part.spawn(self._run())
        self._net.listeners[self.address] = server
        link = LinkServer(self.part, self.parts.link_servicer.Attach)
        self._net.listeners[self.link_address] = link

    async def _run(self) -> None:
        assert self.parts is not None
        async with self.parts.running():
            await asyncio.Event().wait()


class RouterProcess:
    """One router; turns go straight to its routes."""

    def __init__(
        self,
        name: str,
        config: RouterConfig,
        net: Net,
        clock: Clock,
        new_id: Callable[[], str],
        defect: Defect,
        decide_use: DecideUse,
    ) -> None:
        self.part = Part(name)
        self.address = f"{name}:7420"
        self._decide_use = decide_use
        self._defect = defect
        self._config = config
        self._net = net
        self._clock = clock
        self._new_id = new_id
        self._ready = False
        self.heard: set[str] = set()
        """Ids of the engines that it has ever known of."""

    async def start(self) -> None:
        """Follow the directory."""
        await self.part.spawn(self._start())

    def healthy(self) -> bool:
        """Whether it has ever known a decode engine. From then on nothing but decode engines that
        are gone may keep it from serving."""
        if self.replica.synced.is_set():
            known = self.replica.known()
            self.heard.update(one.engine_id for one in known)
            self._ready = self._ready or Role.DECODE not in missing_roles(known)
        return self._ready

    async def _start(self) -> None:
        config, net, part = self._config, self._net, self.part
        self.replica = FleetReplica(self._clock)
        self.app = RouterApp(
            config,
            config.cluster_secret.encode(),
            self.replica,
            self._clock,
            self._new_id,
            client=cast(Any, Client(net, part, config.engines.header_timeout)),
            open_channel=lambda target, _: dial(net, part, target),
            decide_use=self._decide_use,
        )
        directory = directory_client(net, part, [str(one) for one in config.directory], self._clock)
        part.spawn(directory.follow(self.replica))
        server = Server(part, self._defect)
        add_RouterServiceServicer_to_server(self.app.servicer, cast(Any, server))
        net.listeners[self.address] = server


def directory_client(net: Net, part: Part, addresses: list[str], clock: Clock) -> DirectoryClient:
    """A client of the directory in a process."""
    random: Random = net.random
    return DirectoryClient(
        [Address.parse(one) for one in addresses],
        clock,
        new_backoff=lambda: Backoff(draw=random.random),
        open_channel=lambda target, _: dial(net, part, target),
    )
