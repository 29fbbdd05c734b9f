"""A connector that writes down what passes between its halves, and whose second rank goes its own
way while a flag file exists. Loaded by engines, in tests."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from contraflow_connector.connector import ContraflowConnector
from contraflow_connector.events import WorkerEvents
from contraflow_connector.scheduler import ContraflowScheduler
from contraflow_connector.vllm_compat import releases_of, renewals_of
from contraflow_connector.worker import ContraflowWorker

# The variable with the path of a folder, and the flags in there; the test names them too, but
# can't import vLLM.
FOLDER, DEAF, LATE = "CONTRAFLOW_TEST_TELL", "deaf", "late"


class TellingScheduler(ContraflowScheduler):
    """Writes a line of JSON for each order to the workers, and for what comes of one."""

    _steps = 0

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        metadata = super().build_connector_meta(scheduler_output)
        self._steps += 1
        self._write(releases=releases_of(metadata), renewals=renewals_of(metadata))
        return metadata

    def update_connector_output(self, connector_output: Any) -> None:
        super().update_connector_output(connector_output)
        report = connector_output.kv_connector_worker_meta
        events = report.events if report else WorkerEvents()
        self._write(
            ends=events.ends,
            renewed=events.renewed,
            transfers=[(one.request_id, one.bytes, one.descriptors) for one in events.transfers],
            freed=sorted(connector_output.finished_sending or ()),
        )

    def _write(self, **told: Any) -> None:
        if any(told.values()):
            path = Path(os.environ[FOLDER]) / f"{self._settings.role}.jsonl"
            with path.open("a") as file:
                file.write(json.dumps({"step": self._steps, **told}) + "\n")


class TellingWorker(ContraflowWorker):
    """The second rank misses renewals while it is ``deaf``; its reads fail while it is ``late``."""

    def _renew(self, metadata: Any) -> None:
        if not self._second_is(DEAF):
            super()._renew(metadata)

    def _too_late(self, request_id: str) -> bool:
        late: bool = super()._too_late(request_id)
        return late or self._second_is(LATE)

    def _second_is(self, flag: str) -> bool:
        return self.tp_rank == 1 and (Path(os.environ[FOLDER]) / flag).exists()


class TellingConnector(ContraflowConnector):
    """ContraflowConnector with those halves."""

    scheduler_class = TellingScheduler
    worker_class = TellingWorker
