"""The process of a sim engine: flags, ranks, the OpenAI server, a graceful stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, get_args

import msgspec
import structlog

from contraflow.runtime import logging
from contraflow.runtime.address import Address
from contraflow.runtime.clock import SystemClock
from contraflow.runtime.config import ConfigError
from contraflow.runtime.supervise import run_service, run_until_signal
from contraflow.sim.engine import SimEngine
from contraflow.sim.events_zmq import KvEventPublisher, KvEventsConfig
from contraflow.sim.fabric_tcp import TcpFabric
from contraflow.sim.http.server import EngineServer
from contraflow.sim.http.serving import ServedModel
from contraflow.sim.options import SimOptions
from contraflow.web import HttpServer, ListenError
from contraflow_connector.settings import Settings
from contraflow_connector.settings import parse as parse_settings

GRACE_SECONDS = 1.0
"""How long answers may take to leave, once the engines have ended all requests."""
_MAX_SECONDS = 365 * 24 * 3600.0
log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class Flags:
    """The command line. ``kv_transfer_config`` and ``kv_events_config`` are JSON, empty for
    none; ``num_blocks`` is ``--num-gpu-blocks-override``; ``shutdown_timeout`` is the time after
    a signal, in seconds, for which running requests go on and blocks are kept for readers."""

    model: str
    served_model_names: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8000
    block_size: int = 16
    num_blocks: int = 4096
    max_model_len: int = 32_768
    max_num_seqs: int = 64
    data_parallel_size: int = 1
    kv_transfer_config: str = ""
    kv_events_config: str = ""
    profile: str = "instant"
    vllm_version: str = "0.33"
    side_channel_host: str = "127.0.0.1"
    side_channel_port: int = 5600
    shutdown_timeout: int = 0
    log_level: str = "info"

    @property
    def names(self) -> tuple[str, ...]:
        """How requests may call the model."""
        return self.served_model_names or (self.model,)


def run(flags: Flags) -> int:
    """Serve until a signal; the exit status, 2 if a flag is at fault."""
    return run_service(lambda: serve(flags))


async def serve(
    flags: Flags,
    *,
    stop: asyncio.Event | None = None,
    started: Callable[[Address], None] = lambda http: None,
) -> None:
    """Serve until a signal or ``stop``. ``started`` gets the address that is bound.

    Raises ConfigError before anything is served.
    """
    if flags.log_level not in get_args(logging.LogLevel):
        raise ConfigError(f"--log-level must be one of {', '.join(get_args(logging.LogLevel))}")
    ranks = engine_options(flags)
    events = events_config(flags.kv_events_config)
    logging.configure("engine-sim", flags.log_level)  # type: ignore[arg-type]
    async with AsyncExitStack() as stack:
        engines = [await _engine(stack, options, events) for options in ranks]
        model = ServedModel(
            names=flags.names,
            max_model_len=flags.max_model_len,
            vllm_version=f"{flags.vllm_version}.0",
        )
        http = HttpServer(EngineServer(model, engines).handle)
        try:
            port = await http.listen(flags.host, flags.port)
        except ListenError as error:
            raise ConfigError(str(error)) from error
        address = Address(host=flags.host, port=port)

        def ready() -> None:
            log.info("serving", http=str(address), model=flags.names[0], ranks=len(engines))
            started(address)

        await run_until_signal(stop=stop, ready=ready)
        log.info("stopping", connections=http.connections)
        await asyncio.gather(*(engine.shut_down(flags.shutdown_timeout) for engine in engines))
        cut = await http.shutdown(GRACE_SECONDS)
    log.info("stopped", connections_cut=cut)


def engine_options(flags: Flags) -> list[SimOptions]:
    """One for each data-parallel rank. Raises ConfigError naming the flag at fault."""
    transfer = _transfer_options(flags.kv_transfer_config)
    engine_id = transfer.pop("engine_id", "")
    several = flags.data_parallel_size > 1
    try:
        return [
            SimOptions(
                engine_id=f"{engine_id}_dp{rank}" if several else engine_id,
                side_host=flags.side_channel_host,
                side_port=flags.side_channel_port,
                model=flags.model,
                served_model_names=flags.names,
                vllm_version=flags.vllm_version,
                block_size=flags.block_size,
                num_blocks=flags.num_blocks,
                dp_rank=rank,
                max_model_len=flags.max_model_len,
                max_num_seqs=flags.max_num_seqs,
                profile=flags.profile,
                **transfer,
            )
            for rank in range(flags.data_parallel_size)
        ]
    except ValueError as error:
        raise ConfigError(str(error)) from error


class _TransferConfig(msgspec.Struct):
    """What counts here of ``--kv-transfer-config``; the rest is vLLM's own business."""

    engine_id: str = "sim"
    kv_role: str = "kv_both"
    kv_connector_extra_config: dict[str, Any] = {}


def _transfer_options(text: str) -> dict[str, Any]:
    """Fields of SimOptions that the JSON sets; without it the engine has no connector."""
    if not text:
        return {"engine_id": "reference", "reference": True}
    config = _decode("--kv-transfer-config", text, _TransferConfig)
    extra = config.kv_connector_extra_config
    try:
        settings: Settings = parse_settings(extra.get("contraflow"), config.kv_role)
    except ValueError as error:
        raise ConfigError(f"--kv-transfer-config: {error}") from error
    return {
        "engine_id": config.engine_id,
        "kv_role": config.kv_role,
        "role": settings.role,
        "agent": settings.agent,
        "endpoint": settings.endpoint,
        "bidirectional": _switch(extra, "bidirectional_kv_xfer"),
        "retention_ttl": _seconds(extra, "decoder_kv_blocks_ttl", 480.0),
        "kv_lease": _seconds(extra, "kv_lease_duration", 30.0),
    }


def events_config(text: str) -> KvEventsConfig | None:
    """The JSON of ``--kv-events-config``; None if no events are to be sent."""
    if not text:
        return None
    config = _decode("--kv-events-config", text, KvEventsConfig)
    return config if config.publishes else None


def _decode(flag: str, text: str, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{flag}: {error}") from error


def _switch(extra: Mapping[str, Any], key: str) -> bool:
    value = extra.get(key, False)
    if not isinstance(value, bool):
        raise ConfigError(f"--kv-transfer-config: {key} must be true or false")
    return value


def _seconds(extra: Mapping[str, Any], key: str, default: float) -> float:
    value = extra.get(key, default)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and 0 < value <= _MAX_SECONDS):
        raise ConfigError(
            f"--kv-transfer-config: {key} must be a positive number of seconds, at most a year"
        )
    return float(value)


async def _engine(
    stack: AsyncExitStack, options: SimOptions, events: KvEventsConfig | None
) -> SimEngine:
    """A started engine that the stack closes. Raises ConfigError for ports that are taken."""
    try:
        clock = SystemClock()
        publisher = None if events is None else KvEventPublisher(events, options.dp_rank)
        if publisher is not None:
            stack.push_async_callback(publisher.close)
        engine = SimEngine(
            options,
            clock=clock,
            fabric=TcpFabric(),
            on_kv_event=publisher.publish if publisher else lambda event: None,
        )
        await engine.start()
    except (OSError, ValueError) as error:
        raise ConfigError(f"rank {options.dp_rank}: {error}") from error
    stack.push_async_callback(engine.close)
    return engine
