"""What importing the connector brings into a process: it lives in somebody's vLLM environment."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

LOOK = """
import importlib, json, sys
before = set(sys.modules)
for name in sys.argv[1:]:
    importlib.import_module(name)
new = set(sys.modules) - before
print(json.dumps(sorted(name for name in new if sys.modules[name] is not None)))
"""
WITHOUT_VLLM = [
    f"contraflow_connector.{name}"
    for name in ("events", "guard", "link", "reads", "retained", "settings")
]


def imported(*modules: str) -> set[str]:
    """All modules that importing these brings in; without site-packages' start-up files."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK, *modules], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def tops(modules: set[str]) -> set[str]:
    return {name.split(".")[0] for name in modules}


@pytest.mark.parametrize("module", ["contraflow_connector", "contraflow_connector.plugin"])
def test_vllms_plugin_loader_pays_for_nothing(module: str) -> None:
    new = tops(imported(module))
    assert not new & {"vllm", "torch", "nixl", "grpc", "google", "asyncio", "contraflow"}


def test_the_parts_without_vllm_load_grpc_protobuf_and_our_core() -> None:
    new = imported(*WITHOUT_VLLM)
    assert tops(new) & {"vllm", "torch", "nixl", "zmq", "msgspec"} == set()
    allowed = {"contraflow", "contraflow_connector", "google", "grpc"} | sys.stdlib_module_names
    strangers = {name for name in tops(new) - allowed if "cython" not in name}
    # grpc itself loads these where it finds them.
    assert strangers <= {"grpc_health", "grpc_reflection", "grpc_status", "typing_extensions"}
    ours = {name.split(".")[1] for name in new if name.startswith("contraflow.")}
    assert ours == {"core", "v1", "wire"}
