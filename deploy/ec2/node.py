"""Runs the tools on this node and has their output judged."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from deploy.ec2 import checks
from deploy.ec2.checks import Finding
from deploy.ec2.counters import SYSFS, efa_names
from deploy.ec2.outputs import Said

ENGINE_PYTHON = "/opt/vllm/bin/python"
_TIMEOUT = 120.0  # seconds; importing torch on a cold disk takes most of a minute
_EFA_BIN = "/opt/amazon/efa/bin"
# torch first: the plugin needs CUDA's libraries, which torch has loaded in an engine as well.
_AGENT = (
    "import sys, torch; from nixl._api import nixl_agent, nixl_agent_config; "
    "nixl_agent('contraflow-check', nixl_agent_config(backends=[sys.argv[1]]))"
)

Run = Callable[[Sequence[str]], Said]
"""Runs a command."""


def with_environment(env: Mapping[str, str]) -> Run:
    """Commands run with these variables over our own, as an engine's unit would have them."""
    merged = {**os.environ, **env}
    merged["PATH"] = f"{merged.get('PATH', os.defpath)}:{_EFA_BIN}"

    def run(command: Sequence[str]) -> Said:
        try:
            done = subprocess.run(
                command, env=merged, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace", timeout=_TIMEOUT, check=False,
            )  # fmt: skip
        except (FileNotFoundError, PermissionError):
            return Said(127, f"{command[0]}: not found")
        except subprocess.TimeoutExpired:
            return Said(124, f"{command[0]} has not ended after {_TIMEOUT:g} s")
        return Said(done.returncode, done.stdout)

    return run


def check(
    run: Run, env: Mapping[str, str], devices: int, gpus: int, root: Path = SYSFS
) -> list[Finding]:
    """Everything that can be known before an engine is started. ``env``: what it will have."""
    names = efa_names(root)
    found = [
        checks.efa_devices(names, devices),
        checks.libfabric(run(["fi_info", "-p", "efa", "-t", "FI_EP_RDM"]), names),
    ]
    if gpus:
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        found.append(checks.h200s(run(query), gpus))
    found += checks.settings(env, run(["hostname", "-I"]).text.split())
    backend = env.get("NIXL_BACKEND", "")
    if backend == checks.UCX:
        found.append(checks.ucx(run(["ucx_info", "-d"]), names))
    if backend in (checks.LIBFABRIC, checks.UCX):
        agent = run([ENGINE_PYTHON, "-c", _AGENT, backend])
        found.append(checks.trial(agent, backend, devices))
    return found
