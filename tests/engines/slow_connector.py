"""A connector whose reads of prefill's blocks start late, and whose heartbeats are not sent, while
flag files say so; with short leases. Loaded by engines, in tests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from contraflow_connector.connector import ContraflowConnector
from contraflow_connector.worker import ContraflowWorker

# The variable with the path of a folder, and the flags in there; the test names them too, but
# can't import vLLM.
FOLDER, WAITING, MUTE = "CONTRAFLOW_TEST_SLOW", "waiting", "mute"
LEASE = 6


class SlowWorker(ContraflowWorker):
    """While it is ``waiting`` it starts no read, while it is ``mute`` it sends no heartbeat."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._postponed: dict[str, Any] = {}

    def start_load_kv(self, metadata: Any) -> None:
        self._postponed.update(metadata.reqs_to_recv)
        metadata.reqs_to_recv = {}
        if not _is(WAITING):
            metadata.reqs_to_recv, self._postponed = self._postponed, {}
        super().start_load_kv(metadata)

    def _send_heartbeats(self, metadata: Any) -> None:
        if not _is(MUTE):
            super()._send_heartbeats(metadata)


def _is(flag: str) -> bool:
    return (Path(os.environ[FOLDER]) / flag).exists()


class SlowConnector(ContraflowConnector):
    """ContraflowConnector with that worker half."""

    worker_class = SlowWorker

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        vllm_config.kv_transfer_config.kv_connector_extra_config["kv_lease_duration"] = LEASE
        super().__init__(vllm_config, role, kv_cache_config)
