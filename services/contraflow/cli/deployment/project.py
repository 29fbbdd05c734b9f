"""Where the checkout keeps what a deployment needs: engines, demo model, run directories."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from contraflow.cli.deployment.errors import SetupMissing

ENGINE_PYTHON_VARIABLE = "CONTRAFLOW_ENGINE_PYTHON"
"""Names another Python that has vLLM, NIXL, the connector and the calming plugin."""
_KEPT_RUNS = 5


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

    def model_dir(self) -> Path:
        """Where the demo's model is kept: a folder for each version of its maker.

        Raises SetupMissing outside a checkout.
        """
        if not self.model_maker.exists():
            raise SetupMissing(
                f"{self.model_maker} is missing; `contraflow up` and `contraflow demo` run "
                "from a checkout of the project"
            )
        digest = hashlib.sha256(self.model_maker.read_bytes()).hexdigest()[:12]
        return self.root / ".cache" / f"demo-model-{digest}"

    def new_run_dir(self) -> Path:
        """A new folder, readable by its owner only; earlier ones but the last few go."""
        runs = self.root / "var" / "runs"
        try:
            runs.mkdir(parents=True, exist_ok=True)
            run = Path(tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=runs))
        except OSError:  # a read-only checkout, or somebody else's
            return Path(tempfile.mkdtemp(prefix="contraflow-run-"))
        (run / "pid").write_text(str(os.getpid()))
        for old in sorted(runs.iterdir(), key=_made_at)[:-_KEPT_RUNS]:
            if _is_over(old):
                shutil.rmtree(old, ignore_errors=True)
        return run


def _made_at(run: Path) -> int:
    try:
        return run.stat().st_mtime_ns
    except OSError:  # a deployment that starts beside this one was faster
        return 0


def _is_over(run: Path) -> bool:
    """True if the process that made the folder has ended."""
    try:
        os.kill(int((run / "pid").read_text()), 0)
    except (OSError, ValueError):
        return True
    return False
