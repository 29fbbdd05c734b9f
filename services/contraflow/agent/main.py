"""Wires the agent."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog
from prometheus_client import REGISTRY, CollectorRegistry

from contraflow.agent.app import MAX_PAGE_SIZE
from contraflow.agent.config import AgentConfig
from contraflow.agent.parts import AgentParts
from contraflow.agent.private_socket import require_private_folder
from contraflow.agent.servicer import MAX_RELEASED
from contraflow.engine.health import is_healthy
from contraflow.runtime import logging, supervise
from contraflow.runtime.address import Address
from contraflow.runtime.clock import Clock, SystemClock
from contraflow.runtime.config import load
from contraflow.runtime.directory_client import DirectoryClient
from contraflow.runtime.grpc_server import GrpcServer, Limits
from contraflow.runtime.metrics import expose
from contraflow.v1.agent_service_pb2_grpc import add_AgentServiceServicer_to_server
from contraflow.v1.engine_link_service_pb2_grpc import add_EngineLinkServiceServicer_to_server

log = structlog.get_logger()

_HEALTH_TIMEOUT = 2.0  # seconds
_STOP_GRACE = 1.0  # seconds
_MAX_LINK_MESSAGE = 64 * 1024 * 1024  # bytes: a Hello carries a whole handle table


def run(config_path: Path) -> int:
    """Run the agent until SIGINT or SIGTERM; returns the exit status."""

    async def main() -> None:
        config = load(config_path, AgentConfig)
        logging.configure("agent", config.log_level)
        os.umask(0o077)
        async with running(config, SystemClock(), REGISTRY) as address:
            await supervise.run_until_signal(
                ready=lambda: supervise.notify_ready(f"serving on {address}")
            )

    return supervise.run_service(main)


@asynccontextmanager
async def running(
    config: AgentConfig, clock: Clock, registry: CollectorRegistry
) -> AsyncIterator[Address]:
    """The agent, serving inside the context; gives the address of AgentService.

    Raises ConfigError before anything is served.
    """
    require_private_folder(config.link_socket)
    directory = DirectoryClient(config.directory, clock)
    parts = AgentParts(
        config, directory, clock, registry, lambda endpoint: is_healthy(endpoint, _HEALTH_TIMEOUT)
    )
    server = GrpcServer("agent", Limits(max_batch_items=MAX_RELEASED, max_page_size=MAX_PAGE_SIZE))
    server.add(
        add_AgentServiceServicer_to_server,
        parts.servicer,
        "contraflow.v1.AgentService",
    )
    link_server = GrpcServer("agent", Limits(max_message_bytes=_MAX_LINK_MESSAGE))
    link_server.add(
        add_EngineLinkServiceServicer_to_server,
        parts.link_servicer,
        "contraflow.v1.EngineLinkService",
    )
    link_server.listen(config.link_socket)
    address = server.listen(config.listen)
    if config.metrics_listen is not None:
        expose(registry, config.metrics_listen)
    try:
        async with parts.running():
            await link_server.start()
            await server.start()
            log.info("serving", address=str(address), link_socket=str(config.link_socket))
            try:
                yield address
            finally:
                await server.stop(_STOP_GRACE)
                await link_server.stop(0)
                log.info("stopped")
    finally:
        await directory.close()
