"""Where the checkout keeps what a deployment needs: engines, demo model, run directories."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from contraflow.cli.deployment.errors import SetupMissing
from contraflow.cli.deployment.held_folder import HeldFolder, remove_left

ENGINE_PYTHON_VARIABLE = "CONTRAFLOW_ENGINE_PYTHON"
"""Names another Python that has vLLM, NIXL, the connector and the calming plugin."""
TEMPORARY = "tmp-"
"""How names of folders begin that a run does not leave behind."""
_KEPT_RUNS = 5
_RUN_ELSEWHERE = "contraflow-run-"


@dataclass(frozen=True)
class Project:
    """A checkout."""

    root: Path

    @classmethod
    def of_this_package(cls) -> Project:
        """The checkout that this package is installed from."""
        return cls(Path(__file__).resolve().parents[4])

    @property
    def model_maker(self) -> Path:
        """The script that writes the demo's model."""
        return self.root / "deploy" / "demo" / "make_model.py"

    def engine_python(self) -> Path:
        """The engine environment's Python. Raises SetupMissing."""
        named = os.environ.get(ENGINE_PYTHON_VARIABLE)
        python = Path(named) if named else self.root / ".venv-engine" / "bin" / "python"
        if not python.exists():
            raise SetupMissing(f"no engine environment: {python} is missing; run `make setup`")
        return python

    def model_dir(self, size: str = "tiny") -> Path:
        """Where the demo's model of a size is kept: a folder for each version of its maker.

        Raises SetupMissing outside a checkout.
        """
        if not self.model_maker.exists():
            raise SetupMissing(
                f"{self.model_maker} is missing; `contraflow up` and `contraflow demo` run "
                "from a checkout of the project"
            )
        digest = hashlib.sha256(self.model_maker.read_bytes()).hexdigest()[:12]
        return self.root / ".cache" / f"demo-model-{size}-{digest}"

    def new_run_dir(self) -> HeldFolder:
        """A new folder; of earlier ones that nobody holds all but the last few go, and what is
        temporary in those."""
        runs = self.root / "var" / "runs"
        try:
            runs.mkdir(parents=True, exist_ok=True)
            return _new_run(runs, time.strftime("%Y%m%d-%H%M%S-"), "*")
        except OSError:  # a read-only checkout, or somebody else's
            return _new_run(Path(tempfile.gettempdir()), _RUN_ELSEWHERE, f"{_RUN_ELSEWHERE}*")


def _new_run(place: Path, prefix: str, pattern: str) -> HeldFolder:
    run = HeldFolder(place, prefix)
    earlier = sorted(place.glob(pattern), key=_made_at)
    remove_left(earlier[:-_KEPT_RUNS])
    for kept in earlier[-_KEPT_RUNS:]:
        remove_left(kept.glob(f"{TEMPORARY}*"))
    return run


def _made_at(run: Path) -> int:
    try:
        return run.stat().st_mtime_ns
    except OSError:  # a deployment that starts beside this one was faster
        return 0
