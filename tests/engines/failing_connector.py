"""A connector whose reads fail while a flag file says so. Loaded by engines, in tests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from contraflow_connector.connector import ContraflowConnector
from contraflow_connector.worker import ContraflowWorker

# The tests name these too, but can't import vLLM.
FLAG, POLICY = "CONTRAFLOW_TEST_FAIL", "CONTRAFLOW_TEST_POLICY"


class FailingWorker(ContraflowWorker):
    """The flag file holds ``D→P`` or ``P→D``: reads that way fail."""

    def _too_late(self, request_id: str) -> bool:
        meta = self._recving_metadata[request_id]
        # The expiry is what only blocks retained by D have.
        way = "P→D" if meta.remote.blocks_expiry_time is None else "D→P"
        late: bool = super()._too_late(request_id)
        return late or Path(os.environ[FLAG]).read_text() == way


class FailingConnector(ContraflowConnector):
    """ContraflowConnector with that worker half, and with the policy that a test wants."""

    worker_class = FailingWorker

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        vllm_config.kv_transfer_config.kv_load_failure_policy = os.environ[POLICY]
