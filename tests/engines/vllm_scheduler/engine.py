"""An engine without workers: our scheduler half, and who stands around it in a real one."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from tests.engines.vllm_scheduler.model import BLOCK, config, kv_cache_config
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.request import Request, RequestStatus

from contraflow.core.handle import Handle
from contraflow_connector.events import WorkerEvents
from contraflow_connector.holds import Heartbeats
from contraflow_connector.scheduler import ContraflowScheduler
from contraflow_connector.settings import Settings
from contraflow_connector.worker import ContraflowWorker


class FakeLink:
    """An agent that is there, and hears the reports."""

    def __init__(self) -> None:
        self.reports: list[Any] = []

    def silent_for(self) -> float:
        return 0.0

    def report(self, report: Any) -> None:
        self.reports.append(report)

    def close(self) -> None:
        pass


class Engine:
    """A scheduler half, and the steps that vLLM's scheduler would take with it."""

    def __init__(self, engine_id: str, *, sliding: bool = False, agent: str = "") -> None:
        role = "prefill" if engine_id.startswith("p") else "decode"
        settings = Settings(agent, "http://127.0.0.1:9" if agent else "", role)
        kv_cache = kv_cache_config(sliding=sliding)
        self.half = ContraflowScheduler(config(), engine_id, kv_cache, settings)
        self.groups = len(kv_cache.kv_cache_groups)
        self.link: Any = FakeLink()
        if not agent:
            setattr(self.half, "_link", self.link)  # noqa: B010 -- not a Link
        self.made = 0

    def request(self, tokens: Sequence[int], params: dict[str, Any] | None) -> Request:
        """A request that has arrived. Parameters come as JSON, as over HTTP."""
        self.made += 1
        extra = {"kv_transfer_params": json.loads(json.dumps(params))} if params else None
        sampling = SamplingParams(max_tokens=32, extra_args=extra)
        request = Request(f"{self.half.engine_id}-r{self.made}", list(tokens), sampling, None)
        self.half.on_new_request(request)
        return request

    def ask(self, request: Request, local: int = 0) -> tuple[int | None, bool]:
        return self.half.get_num_new_matched_tokens(request, local)

    def allocate(self, request: Request, external: int) -> Any:
        """Blocks for the whole prompt; returns the metadata of the next step."""
        count = -(-request.num_prompt_tokens // BLOCK)
        groups = tuple([KVCacheBlock(block_id=i + 1) for i in range(count)] for _ in self.each())
        self.half.update_state_after_alloc(request, KVCacheBlocks(groups), external)
        return self.step()

    def each(self) -> range:
        return range(self.groups)

    def step(self) -> Any:
        return self.half.build_connector_meta(SimpleNamespace())

    def finish(
        self, request: Request, output: Sequence[int] = (5,), *, ahead: int = 0
    ) -> tuple[bool, dict[str, Any] | None]:
        """The request ends by length, all but its last token with KV (and ``ahead`` more)."""
        request.append_output_token_ids(list(output))
        request.num_computed_tokens = len(request.all_token_ids) - 1 + ahead
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED
        count = -(-request.num_computed_tokens // BLOCK)
        blocks = tuple([10 * (group + 1) + i for i in range(count)] for group in self.each())
        return self.half.request_finished(request, blocks)

    def handles(self) -> list[Handle]:
        return self.half._retained._table.live()


def a_worker(request_id: str, deadline: float) -> ContraflowWorker:
    """A worker half without memory or peers, which holds one request's blocks."""
    worker = ContraflowWorker.__new__(ContraflowWorker)
    worker._events = WorkerEvents()
    worker._reqs_to_send = {request_id: deadline}
    worker._reqs_to_process = {request_id}
    worker._released = set()
    worker._overdue = {}
    worker._clock_errors = {}
    worker._holds = {}
    worker._heartbeats = Heartbeats()
    worker.consumer_notification_counts_by_req = defaultdict(int)
    worker.expected_consumer_notifications_by_req = {}
    return worker
