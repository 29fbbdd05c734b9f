"""The scheduler half: our decisions in the hooks of vLLM, and the link to the agent."""

from __future__ import annotations

import time
import uuid
from typing import Any

from contraflow.core.chain import Context
from contraflow.core.handle import Handle
from contraflow.core.transfer_params import Params
from contraflow_connector.decisions import Decisions
from contraflow_connector.guard import guarded
from contraflow_connector.link import Link
from contraflow_connector.orders import claimed_params
from contraflow_connector.retained import Retained
from contraflow_connector.settings import Settings
from contraflow_connector.vllm_compat import (
    EXPIRY_MARGIN_SECONDS,
    NixlConnectorMetadata,
    NixlPullConnectorScheduler,
    VllmConfig,
    WorkerReport,
    chain_context,
    count_ranks,
    describe_engine,
    free_blocks,
    lease_extension,
    local_cache_tokens,
    may_pull,
    pull_as_told,
    put_holds,
    put_releases,
    put_renewals,
    start_leases,
    warn_of_unsafe_roles,
)

_NOTHING: tuple[int, bool] = (0, False)


class ContraflowScheduler(NixlPullConnectorScheduler, Decisions):
    """vLLM's pull scheduler, with our decisions. Every hook is guarded: none may raise."""

    _link: Link | None

    def __init__(
        self, vllm_config: VllmConfig, engine_id: str, kv_cache_config: Any, settings: Settings
    ):
        super().__init__(vllm_config, engine_id, kv_cache_config)
        self._settings = settings
        self._prepare(
            Retained(time.perf_counter, count_ranks(vllm_config)),
            bidirectional=bool(self.is_bidirectional_kv_xfer_enabled),
            trimmable=not self._is_hma_required and not self._has_mamba,
            num_blocks=kv_cache_config.num_blocks,
            groups=len(kv_cache_config.kv_cache_groups),
        )
        self.block_pool: Any = None
        pull_as_told(self)
        warn_of_unsafe_roles(vllm_config, settings, self._bidirectional)

    def set_xfer_handshake_metadata(self, metadata: dict[tuple[int, int], Any]) -> None:
        """Called once all workers have registered their memory: only now may threads start."""
        super().set_xfer_handshake_metadata(metadata)
        self._start_link(metadata)

    @guarded(None)
    def _start_link(self, metadata: dict[tuple[int, int], Any]) -> None:
        if not self._settings.agent or self._link is not None:
            return
        engine = describe_engine(
            self.vllm_config,
            self._settings,
            engine_id=self.engine_id,
            boot_nonce=uuid.uuid4().hex,
            num_blocks=self.kv_cache_config.num_blocks,
            bidirectional=self._bidirectional
            and (self._settings.role == "decode" or self._may_pull()),
            trimmable=self._trimmable,
            compatibility_hash=next(iter(metadata.values())).compatibility_hash,
        )
        self._link = Link(self._settings.agent, engine, self._retained, self._offer)
        self._link.start()

    def shutdown(self) -> None:
        """Ends the link, then what vLLM started."""
        if self._link is not None:
            self._link.close()
        super().shutdown()

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """As vLLM's, for tokens that are proven to be the request's own."""
        self._note_waiting(request)
        if not self._admit(request, num_computed_tokens):
            return _NOTHING
        result: tuple[int | None, bool] = super().get_num_new_matched_tokens(
            request, num_computed_tokens
        )
        return result

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """As vLLM's, but a handle that is not pulled is kept: its owner is not notified."""
        self._waiting.pop(request.request_id, None)
        self._settle(request, num_external_tokens)
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> NixlConnectorMetadata:
        """As vLLM's, with what the workers shall free or hold for longer, and until when they may
        read."""
        metadata = super().build_connector_meta(scheduler_output)
        self._make_room()
        self._tell_workers(metadata)
        return metadata

    @guarded(None)
    def _tell_workers(self, metadata: NixlConnectorMetadata) -> None:
        put_releases(metadata, self._retained.step())
        put_renewals(metadata, self._retained.renewals())
        handed_over = self._retained.handed_over(metadata.reqs_to_send)
        start_leases(metadata, handed_over, self._lease_extension())
        put_holds(metadata, self._holds)
        self._holds = {}

    def update_connector_output(self, connector_output: Any) -> None:
        """As vLLM's; learns what was read, what expired, and how pulls went."""
        super().update_connector_output(connector_output)
        self._learn(connector_output)

    @guarded(None)
    def _learn(self, output: Any) -> None:
        report = output.kv_connector_worker_meta
        if isinstance(report, WorkerReport):
            for request_id, state in report.events.ends:
                self._retained.seen(request_id, state)
            for request_id, deadline in report.events.renewed:
                self._retained.confirmed(request_id, deadline)
            for one in report.events.transfers:
                if read := self._reads.get(one.request_id):
                    read.transferred(one.bytes, one.descriptors, one.seconds)
        for request_id in output.failed_recving or ():
            if read := self._reads.get(request_id):
                read.fail()
        for request_id in output.finished_recving or ():
            if (read := self._reads.get(request_id)) and read.started:
                read.wall_seconds = time.perf_counter() - read.started
        self._retained.finished(output.finished_sending or ())

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        """As vLLM's; P adds its tip and its report, D keeps a handle."""
        delay, params = super().request_finished(request, block_ids)
        params = self._finish(request, delay, params)
        self._forget(request.request_id)
        return delay, params

    @staticmethod
    def _offer(handle: Handle) -> Params:
        return claimed_params(handle, EXPIRY_MARGIN_SECONDS)

    def _may_pull(self) -> bool:
        return may_pull(self.vllm_config, self._bidirectional)

    def _lease_extension(self) -> float:
        return lease_extension(self.vllm_config)

    def _context(self, request: Any) -> Context | None:
        return chain_context(self.vllm_config, request)

    def _found_in_cache(self, request: Any) -> int | None:
        return local_cache_tokens(request)

    def _free_blocks(self) -> int | None:
        return None if self.block_pool is None else free_blocks(self.block_pool)
