"""The agent as one object: everything between its two servers and the directory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from contraflow.agent.attachment import Attachment
from contraflow.agent.config import AgentConfig
from contraflow.agent.engines import Engines
from contraflow.agent.feed import HandleFeed
from contraflow.agent.metrics import HandleMetrics, MeteredAgent, PullMetrics, show_engines
from contraflow.agent.mirror import MirroredHandle
from contraflow.agent.registrar import Registrar
from contraflow.agent.registration import Directory, EngineRegistration
from contraflow.agent.retention import Retention
from contraflow.agent.servicer import AgentServicer, EngineLinkServicer
from contraflow.runtime.clock import Clock


class AgentParts:
    """``servicer`` is for routers and operators, ``link_servicer`` for the node's engines.
    ``is_healthy`` tells whether the engine at an endpoint serves."""

    def __init__(
        self,
        config: AgentConfig,
        directory: Directory,
        clock: Clock,
        registry: CollectorRegistry,
        is_healthy: Callable[[str], Awaitable[bool]],
    ) -> None:
        def new_registration(attachment: Attachment) -> EngineRegistration:
            return EngineRegistration(
                attachment,
                directory,
                clock,
                is_healthy=is_healthy,
                agent_address=config.advertised,
                ttl=config.liveness_ttl_seconds,
                on_id_reused=self.engines.note_reuse,
            )

        def observe_handle(handle: MirroredHandle) -> None:
            feed.tell(handle)
            metrics.observe(handle)
            self._retention.note(handle)

        feed = HandleFeed()
        metrics = HandleMetrics(registry)
        self._registrar = Registrar(new_registration)
        self.engines = Engines(
            clock,
            first_epoch=clock.wall_ms(),
            observe_pull=PullMetrics(registry).observe,
            observe_handle=observe_handle,
            on_attached=self._registrar.attached,
            on_detached=self._registrar.detached,
            on_replaced=self._registrar.replaced,
        )
        self._retention = Retention(
            self.engines.attached, config.retention.policy, clock, metrics.renewals
        )
        show_engines(registry, self.engines)
        agent = MeteredAgent(
            self.engines,
            feed,
            acquire_timeout=config.claim.acquire_timeout_seconds,
            order_timeout=config.claim.order_timeout_seconds,
            registry=registry,
            clock=clock,
        )
        self.servicer = AgentServicer(agent, config.claim, config.advertised, clock)
        self.link_servicer = EngineLinkServicer(self.engines, clock)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Expiry, retention and registrations go on in here."""
        async with asyncio.TaskGroup() as group, self._registrar.running():
            loops = [
                group.create_task(self.engines.keep_expiring()),
                group.create_task(self._retention.run()),
            ]
            try:
                yield
            finally:
                for loop in loops:
                    loop.cancel()
