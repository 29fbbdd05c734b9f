"""A connector that spoils pulled blocks while a flag file exists. Loaded by engines, in tests."""

from __future__ import annotations

import os
from pathlib import Path

from contraflow_connector.connector import ContraflowConnector
from contraflow_connector.worker import ContraflowWorker

# The variable with the path of the flag file; the test names it too, but can't import vLLM.
FLAG = "CONTRAFLOW_TEST_CORRUPT"


class CorruptingWorker(ContraflowWorker):
    """After each D→P pull, overwrites the first pulled block in every layer."""

    def _pop_done_transfers(self, transfers: dict[str, list[int]]) -> tuple[set[str], set[str]]:
        done, failed = super()._pop_done_transfers(transfers)
        if Path(os.environ[FLAG]).exists():
            for request_id in done - failed:
                self._spoil(request_id)
        return done, failed

    def _spoil(self, request_id: str) -> None:
        meta = self._recving_metadata[request_id]
        # The expiry is what only blocks retained by D have: the forward leg is left alone.
        if meta.remote.blocks_expiry_time is None or not any(meta.local_physical_block_ids):
            return
        block = meta.local_physical_block_ids[0][0]
        for cache in self.device_kv_caches.values():
            dimension = list(cache.shape).index(self.num_blocks)
            cache.select(dimension, block).fill_(3.0)


class CorruptingConnector(ContraflowConnector):
    """ContraflowConnector with that worker half."""

    worker_class = CorruptingWorker
