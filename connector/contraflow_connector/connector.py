"""ContraflowConnector: what vLLM loads. A facade over the scheduler and the worker half."""

from __future__ import annotations

from typing import Any, ClassVar

from contraflow_connector.scheduler import ContraflowScheduler
from contraflow_connector.settings import parse
from contraflow_connector.vllm_compat import (
    KVConnectorRole,
    NixlPullConnector,
    VllmConfig,
    WorkerReport,
    recompute_failed_loads,
    unique_engine_id,
)
from contraflow_connector.worker import ContraflowWorker


class ContraflowConnector(NixlPullConnector):
    """vLLM's pull connector with a token proof on both legs and a handle table.

    Configured by ``kv_connector_extra_config.contraflow``, see ``settings.Settings``.
    Without an agent prefill still hands over to decode, and nothing is pulled back.
    """

    scheduler_class: ClassVar[type[ContraflowScheduler]] = ContraflowScheduler
    worker_class: ClassVar[type[ContraflowWorker]] = ContraflowWorker

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: Any):
        # NixlBaseConnector's constructor: NixlPullConnector's would build stock halves too.
        super(NixlPullConnector, self).__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        settings = parse(transfer.get_from_extra_config("contraflow", None), transfer.kv_role)
        self.engine_id = unique_engine_id(vllm_config)
        self.connector_scheduler: ContraflowScheduler | None = None
        self.connector_worker: ContraflowWorker | None = None
        if role == KVConnectorRole.SCHEDULER:
            recompute_failed_loads(vllm_config)
            self.connector_scheduler = self.scheduler_class(
                vllm_config, self.engine_id, kv_cache_config, settings
            )
        else:
            self.connector_worker = self.worker_class(vllm_config, self.engine_id, kv_cache_config)

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """Called in the scheduler process, once its cache manager has been made."""
        if self.connector_scheduler is not None:
            self.connector_scheduler.block_pool = gpu_block_pool

    def build_connector_worker_meta(self) -> WorkerReport | None:
        """Events of this rank since the last step."""
        assert self.connector_worker is not None
        events = self.connector_worker.take_events()
        return WorkerReport(events) if events else None
