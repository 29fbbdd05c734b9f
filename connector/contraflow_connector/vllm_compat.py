"""The only file that knows versions of vLLM. Written against 0.32 and 0.33.

Everything that is imported from vLLM or read off its objects passes through here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import vllm
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import (
    NIXL_CONNECTOR_VERSION,
    NixlConnectorMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import (
    NixlPullConnectorScheduler,
)
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import (
    _KV_BLOCKS_EXPIRY_SAFETY_MARGIN,
    NixlPullConnectorWorker,
)

from contraflow.core.chain import Context, Item
from contraflow.core.fleet import Engine, Role
from contraflow_connector.events import WorkerEvents
from contraflow_connector.guard import log
from contraflow_connector.holds import Hold, Lease
from contraflow_connector.settings import Settings

__all__ = [
    "EXPIRY_MARGIN_SECONDS",
    "KVConnectorRole",
    "NixlConnectorMetadata",
    "NixlPullConnector",
    "NixlPullConnectorScheduler",
    "NixlPullConnectorWorker",
    "VllmConfig",
]

EXPIRY_MARGIN_SECONDS: float = _KV_BLOCKS_EXPIRY_SAFETY_MARGIN
"""vLLM declines a read that would start less than this before the expiry handed out."""

_RELEASES = "contraflow_releases"
_HOLDS = "contraflow_holds"
_RENEWALS = "contraflow_renewals"


class WorkerReport(KVConnectorWorkerMetadata):
    """Carries WorkerEvents from all ranks to the scheduler half."""

    def __init__(self, events: WorkerEvents) -> None:
        self.events = events

    def aggregate(self, other: WorkerReport) -> WorkerReport:
        """Both ranks' events."""
        return WorkerReport(self.events.merged(other.events))


def put_releases(metadata: NixlConnectorMetadata, request_ids: tuple[str, ...]) -> None:
    """Let the metadata of a step carry ids whose blocks the workers shall free."""
    if request_ids:
        setattr(metadata, _RELEASES, request_ids)


def releases_of(metadata: NixlConnectorMetadata) -> tuple[str, ...]:
    """The ids that ``put_releases`` put there."""
    return getattr(metadata, _RELEASES, ())


def put_holds(metadata: NixlConnectorMetadata, holds: dict[str, Hold]) -> None:
    """Let the metadata of a step carry until when the blocks of its reads are held, by request
    id."""
    if holds:
        setattr(metadata, _HOLDS, holds)


def holds_of(metadata: NixlConnectorMetadata) -> dict[str, Hold]:
    """What ``put_holds`` put there."""
    holds: dict[str, Hold] = getattr(metadata, _HOLDS, {})
    return holds


def put_renewals(metadata: NixlConnectorMetadata, deadlines: dict[str, float]) -> None:
    """Let the metadata of a step carry until when the workers shall hold the blocks of
    requests, by request id, on the scheduler half's clock."""
    if deadlines:
        setattr(metadata, _RENEWALS, deadlines)


def renewals_of(metadata: NixlConnectorMetadata) -> dict[str, float]:
    """What ``put_renewals`` put there."""
    deadlines: dict[str, float] = getattr(metadata, _RENEWALS, {})
    return deadlines


def on_worker_clock(metadata: NixlConnectorMetadata, deadline: float, now: float) -> float:
    """A deadline of the scheduler half on the clock of ``now``, a worker's: that of another
    node has another beginning. What the metadata was on its way for only makes it later."""
    sent_at = float(metadata.scheduler_clock)
    return now + (deadline - sent_at) if sent_at else deadline


def count_ranks(config: VllmConfig) -> int:
    """Workers that must each let go of a request's blocks: as vLLM's own aggregation counts."""
    return int(config.parallel_config.world_size)


def lease_extension(config: VllmConfig) -> float:
    """Seconds, from its receipt, to which a heartbeat extends a lease: as vLLM's workers do it."""
    return float(config.kv_transfer_config.get_from_extra_config("kv_lease_duration", 30) * 2 // 3)


def start_leases(
    metadata: NixlConnectorMetadata, request_ids: Collection[str], extension: float
) -> None:
    """Let leases that begin with a step last as if every heartbeat so far had extended them.

    vLLM's workers pass over heartbeats for a request until they have its lease, which a long
    step may delay; who sent them counts on them.
    """
    least = metadata.scheduler_clock + extension
    for request_id in request_ids:
        metadata.reqs_to_send[request_id] = max(metadata.reqs_to_send[request_id], least)


def lease_of(worker: NixlPullConnectorWorker, request_id: str) -> Lease:
    """Whose blocks a request reads."""
    remote = worker._recving_metadata[request_id].remote
    return remote.engine_id, remote.request_id


def clock_offset(worker: NixlPullConnectorWorker, engine_id: str) -> float:
    """Seconds that the clock of another engine is ahead, by the handshake with it."""
    return float(worker._engine_clock_offset[engine_id])


@contextmanager
def noting_notifications(worker: NixlPullConnectorWorker) -> Iterator[set[str]]:
    """The NIXL agents that are sent a notification meanwhile. vLLM goes on where that fails."""
    nixl, told = worker.nixl_wrapper, set[str]()
    worker.nixl_wrapper = _Noting(nixl, told)
    try:
        yield told
    finally:
        worker.nixl_wrapper = nixl


class _Noting:
    def __init__(self, nixl: Any, told: set[str]) -> None:
        self._nixl = nixl
        self._told = told

    def __getattr__(self, name: str) -> Any:
        return getattr(self._nixl, name)

    def send_notif(self, agent_name: str, **rest: Any) -> None:
        self._nixl.send_notif(agent_name, **rest)
        self._told.add(agent_name)


def heartbeats_of(metadata: NixlConnectorMetadata) -> dict[str, set[Lease]]:
    """The leases that a step's heartbeats are for, by engine; of none if no heartbeat is due."""
    return {
        engine_id: {(engine_id, request_id) for request_id in info.req_ids}
        for engine_id, info in metadata.heartbeat_by_engine.items()
    }


def agents_of(worker: NixlPullConnectorWorker, engine_id: str) -> set[str]:
    """The NIXL agents of another engine's ranks that a worker reads from."""
    return set(worker._remote_agents.get(engine_id, {}).values())


def transfer_totals(worker: NixlPullConnectorWorker) -> tuple[int, int, float]:
    """Bytes, descriptors and seconds of all transfers that the worker's statistics hold."""
    data = worker.xfer_stats.data
    return (
        int(sum(data["bytes_transferred"])),
        int(sum(data["num_descriptors"])),
        float(sum(data["transfer_duration"])),
    )


def unique_engine_id(config: VllmConfig) -> str:
    """Engine id of this start: the configured id may be fixed, an incarnation's is not.

    The same in every process of one start, since vLLM hands its instance id to all.
    """
    return f"{config.kv_transfer_config.engine_id}-{config.instance_id}"


def recompute_failed_loads(config: VllmConfig) -> None:
    """A failed pull costs time, never the request. vLLM reads the policy after this."""
    transfer = config.kv_transfer_config
    if transfer.kv_load_failure_policy != "recompute":
        log.warning(
            "kv_load_failure_policy is %r; Contraflow sets it to 'recompute', so that a pull "
            "that fails does not fail its request",
            transfer.kv_load_failure_policy,
        )
        transfer.kv_load_failure_policy = "recompute"


def pull_as_told(scheduler: NixlPullConnectorScheduler) -> None:
    """The router says of each request what is pulled; vLLM would refuse, to all of them, what is
    below one fixed number of tokens."""
    if scheduler.kv_recompute_threshold:
        log.info(
            "kv_recompute_threshold (%d) has no effect: the router decides what is pulled",
            scheduler.kv_recompute_threshold,
        )
    scheduler.kv_recompute_threshold = 0


def warn_of_unsafe_roles(config: VllmConfig, settings: Settings, bidirectional: bool) -> None:
    """Name set-ups that vLLM accepts and that are not safe."""
    if settings.role == Role.PREFILL and bidirectional:
        role = config.kv_transfer_config.kv_role
        if role == "kv_producer":
            log.warning(
                "kv_role=kv_producer with bidirectional_kv_xfer: with async scheduling a block "
                "being filled by a pull may still be written by an earlier step; no handle is "
                "pulled here. Start prefill engines with kv_role=kv_both"
            )


def may_pull(config: VllmConfig, bidirectional: bool) -> bool:
    """Whether this engine may pull retained blocks."""
    return bidirectional and config.kv_transfer_config.kv_role != "kv_producer"


def chain_context(config: VllmConfig, request: Any) -> Context | None:
    """What binds a request's tokens; None if its prompt is not made of tokens."""
    if request.prompt_token_ids is None or request.prompt_embeds is not None:
        return None
    lora = request.lora_request
    return Context(
        model=config.model_config.model,
        block_size=config.cache_config.block_size,
        lora_name=lora.lora_name if lora else "",
        cache_salt=request.cache_salt or "",
        items=tuple(
            Item(feature.identifier, feature.mm_position.offset, feature.mm_position.length)
            for feature in request.mm_features
        ),
    )


def local_cache_tokens(request: Any) -> int | None:
    """Prompt tokens that the scheduler has just found in the engine's own prefix cache.

    None once the statistics have left with the first output, or if there are none.
    """
    stats = getattr(request, "prefill_stats", None)
    return stats.num_local_cached_tokens if stats and stats.num_prompt_tokens else None


def free_blocks(pool: Any) -> int:
    """Blocks of vLLM's pool that no request holds; cached ones count as free."""
    return int(pool.get_num_free_blocks())


def describe_engine(
    config: VllmConfig,
    settings: Settings,
    *,
    engine_id: str,
    boot_nonce: str,
    num_blocks: int,
    bidirectional: bool,
    trimmable: bool,
    compatibility_hash: str,
) -> Engine:
    """This incarnation as the directory shall know it.

    ``compatibility_hash`` is vLLM's own, over versions, model, dtypes and attention backend;
    what it leaves out, or may come to leave out, is bound into the class beside it. Role and
    ``bidirectional`` are not: both sides of a pull differ in the one, and plans ask for the other.
    """
    model, cache, parallel = config.model_config, config.cache_config, config.parallel_config
    names = model.served_model_name
    kv_dtype = _kv_dtype(config)
    layout = [
        compatibility_hash,
        NIXL_CONNECTOR_VERSION,
        model.model,
        kv_dtype,
        cache.block_size,
        parallel.tensor_parallel_size,
        parallel.decode_context_parallel_size,
        parallel.pipeline_parallel_size,
        trimmable,
    ]
    return Engine(
        engine_id=engine_id,
        boot_nonce=boot_nonce,
        role=Role(settings.role),
        endpoint=settings.endpoint,
        dp_rank=parallel.data_parallel_index,
        served_models=tuple([names] if isinstance(names, str) else names),
        model=model.model,
        block_size=cache.block_size,
        num_blocks=num_blocks,
        kv_dtype=kv_dtype,
        tp_size=parallel.tensor_parallel_size,
        vllm_version=vllm.__version__,
        connector_version=NIXL_CONNECTOR_VERSION,
        bidirectional=bidirectional,
        trimmable=trimmable,
        compatibility_class=hashlib.sha256(json.dumps(layout).encode()).hexdigest()[:16],
    )


def _kv_dtype(config: VllmConfig) -> str:
    """As vLLM names it; "auto" is the dtype of the model."""
    dtype = str(config.cache_config.cache_dtype)
    return str(config.model_config.dtype).removeprefix("torch.") if dtype == "auto" else dtype
