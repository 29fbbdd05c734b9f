"""Runs inside an engine environment: our scheduler half on the vLLM found there, step by step.

vLLM's scheduler class, configuration, requests and metadata are real; there are no workers.
Prints a JSON object: the version, what each case of ``vllm_scheduler/cases_*.py`` came to ("ok"
or a traceback), and the parameters that a prefill and a decode engine returned.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import vllm
from tests.engines.vllm_scheduler.registry import CASES, RETURNED

from contraflow_connector.plugin import register


def came_to(run: Callable[[], None]) -> str:
    try:
        run()
    except Exception:
        return traceback.format_exc()
    return "ok"


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    register()
    register()  # as vLLM does in each of its processes, perhaps more than once
    for file in Path(__file__).parent.glob("vllm_scheduler/cases_*.py"):
        import_module(f"tests.engines.vllm_scheduler.{file.stem}")
    outcomes = {name: came_to(run) for name, run in CASES.items()}
    json.dump({"version": vllm.__version__, "cases": outcomes, "returned": RETURNED}, sys.stdout)
