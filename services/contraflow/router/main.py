"""The router process: config, app, listeners, one task group, a graceful stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from contraflow.router.app import RouterApp
from contraflow.router.config import RouterConfig, cluster_secret
from contraflow.router.servicer import SERVICE
from contraflow.runtime import logging
from contraflow.runtime.address import Address
from contraflow.runtime.clock import SystemClock
from contraflow.runtime.config import ConfigError, load
from contraflow.runtime.directory_client import DirectoryClient
from contraflow.runtime.fleet_replica import FleetReplica
from contraflow.runtime.grpc_server import GrpcServer, Limits
from contraflow.runtime.supervise import notify_ready, run_service, run_until_signal
from contraflow.v1.router_service_pb2_grpc import add_RouterServiceServicer_to_server
from contraflow.web import HttpServer, ListenError

log = structlog.get_logger()


def run(config_path: Path) -> int:
    """Serve until a signal; the exit status, 2 if the configuration is at fault."""
    return run_service(lambda: serve(load(config_path, RouterConfig)))


async def serve(
    config: RouterConfig,
    *,
    stop: asyncio.Event | None = None,
    started: Callable[[Address, Address], None] = lambda http, grpc: None,
) -> None:
    """Serve until a signal or ``stop``, then let responses finish until the drain deadline.

    ``started`` gets the addresses that are bound. Raises ConfigError before anything is served.
    """
    secret = cluster_secret(config)
    logging.configure("router", config.log_level)
    clock = SystemClock()
    replica = FleetReplica(clock)
    app = RouterApp(config, secret, replica, clock)
    directory = DirectoryClient(config.directory, clock)
    http = HttpServer(app.routes.handle, limits=config.http)
    # A prompt may be as long as one of the front door.
    grpc = GrpcServer("router", Limits(max_message_bytes=config.http.max_body_bytes))
    grpc.add(add_RouterServiceServicer_to_server, app.servicer, SERVICE)
    try:
        grpc_address = grpc.listen(config.grpc_listen)
        http_address = await _listen(http, config.listen)
        await grpc.start()
        if app.tenancy.open:
            log.warning("no_tenants_configured", effect="requests are not authenticated")

        def ready() -> None:
            log.info("serving", http=str(http_address), grpc=str(grpc_address))
            started(http_address, grpc_address)
            notify_ready(f"serving on {http_address}, gRPC on {grpc_address}")

        await run_until_signal(directory.follow(replica), stop=stop, ready=ready)
        log.info("draining", deadline_seconds=config.drain_deadline_seconds)
        app.routes.draining = True
        await grpc.set_serving(False)
        connections, calls = await asyncio.gather(
            http.shutdown(config.drain_deadline_seconds),
            app.generations.drain(config.drain_deadline_seconds),
        )
        log.info("stopped", connections_cut=connections, calls_cut=calls)
    finally:
        await grpc.stop(0)
        await app.close()
        await directory.close()


async def _listen(http: HttpServer, address: Address) -> Address:
    try:
        return Address(host=address.host, port=await http.listen(address.host, address.port))
    except ListenError as error:
        raise ConfigError(str(error)) from error
