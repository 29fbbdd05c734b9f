"""Wires the directory: configuration, logging, store, view, app, servicer, server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry

from contraflow.directory.app import Directory
from contraflow.directory.config import DirectoryConfig
from contraflow.directory.feed import follow_store
from contraflow.directory.records import Records
from contraflow.directory.servicer import SERVICE, DirectoryServicer
from contraflow.directory.view import View
from contraflow.runtime import logging, metric_names, metrics
from contraflow.runtime.address import Address
from contraflow.runtime.clock import Clock, SystemClock
from contraflow.runtime.config import load
from contraflow.runtime.grpc_server import GrpcServer, Limits
from contraflow.runtime.supervise import notify_ready, run_service, run_until_signal
from contraflow.store.etcd import EtcdStore
from contraflow.store.memory import MemoryStore
from contraflow.store.port import Store
from contraflow.v1.directory_service_pb2_grpc import add_DirectoryServiceServicer_to_server

log = structlog.get_logger()

_GRACE_SECONDS = 2.0


def run(config_path: Path) -> int:
    """Serve until a signal; the exit status, 2 if the configuration is at fault."""
    return run_service(lambda: _main(load(config_path, DirectoryConfig)))


async def _main(config: DirectoryConfig) -> None:
    logging.configure("directory", config.log_level)
    await serve(config)


async def serve(
    config: DirectoryConfig,
    *,
    stop: asyncio.Event | None = None,
    started: Callable[[Address], None] = lambda _: None,
) -> None:
    """Serve until a signal or ``stop``. ``started`` gets the address that is bound.

    Raises ConfigError before anything is served.
    """
    clock = SystemClock()
    view = View(config.limits.watch_history)
    records = Records(config.prefix, clock)
    store = _open_store(config, clock)
    directory = Directory(
        store, view, records, clock,
        liveness=config.liveness, limits=config.limits,
        progress_seconds=config.progress_seconds,
    )  # fmt: skip
    server = GrpcServer("directory", _limits(config), features=[f"store:{config.store}"])
    server.add(add_DirectoryServiceServicer_to_server, DirectoryServicer(directory, clock), SERVICE)
    try:
        address = server.listen(config.listen)
        _expose_metrics(config, view, directory)
        await server.start(serving=False)

        def announce() -> None:
            log.info("serving", address=str(address), store=config.store)
            started(address)
            notify_ready(f"serving on {address}")

        await run_until_signal(
            follow_store(store, records, view, clock),
            _serve_once_filled(server, view),
            stop=stop,
            ready=announce,
        )
    finally:
        view.close()
        await server.stop(_GRACE_SECONDS)
        await store.close()
    log.info("stopped")


async def _serve_once_filled(server: GrpcServer, view: View) -> None:
    # Healthy from the first content on, also without the store: reads stay right to serve.
    await view.filled.wait()
    await server.set_serving(True)


def _limits(config: DirectoryConfig) -> Limits:
    return Limits(
        max_message_bytes=config.limits.max_message_bytes,
        max_batch_items=config.limits.max_batch_items,
        max_page_size=config.limits.max_page_size,
    )


def _open_store(config: DirectoryConfig, clock: Clock) -> Store:
    if config.store == "memory":
        return MemoryStore(clock)
    return EtcdStore(config.etcd.endpoints, timeout=config.etcd.timeout_seconds)


def _expose_metrics(config: DirectoryConfig, view: View, directory: Directory) -> None:
    if config.metrics_listen is None:
        return
    registry = CollectorRegistry()
    gauges: dict[metric_names.Metric, Callable[[], float]] = {
        metric_names.DIRECTORY_ENGINES: lambda: len(view.engines),
        metric_names.DIRECTORY_SESSIONS: lambda: len(view.sessions),
        metric_names.DIRECTORY_REVISION: lambda: view.revision,
        metric_names.DIRECTORY_IN_SYNC: lambda: view.in_sync,
        metric_names.DIRECTORY_WATCHERS: lambda: directory.watchers,
    }
    for metric, value in gauges.items():
        metrics.gauge(registry, metric).set_function(value)
    address = metrics.expose(registry, config.metrics_listen)
    log.info("metrics", address=str(address))
