"""Calms vLLM and NIXL where several engines share two cores.

A vLLM general plugin, loaded in every process of an engine. It does nothing unless the environment
says `CONTRAFLOW_DEMO_CALM=1`. It changes when threads run, never what is computed or transferred:

- AMX: asks the kernel for tile permission early. Otherwise a bf16 engine dies of SIGILL if the
  first batch of its life is a decode, as it is on a decode node.
- NIXL: its progress thread polls without pause, a core per engine. It pauses between polls instead.
- Engine loop: an engine that waits for or retains remote KV steps without pause. It sleeps after a
  step in which nothing ran.
- Worker: waits for its next message by yielding in a loop. Linux 6.18 charges each yield as a whole
  time slice, so a worker that has yielded for a while is starved for minutes as soon as another
  thread (NIXL's, when UCX spins) is busy on its core. It sleeps between looks instead.
- Cores: on CPUs vLLM's NIXL worker pins itself to the last core of the node, so that all engines
  compute on the same one. It stays on the core that it was given.

Each patch logs one line. Where another version of vLLM or NIXL lacks what a patch expects, a
warning says so and the engine stays as it is.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable
from typing import Any

ENABLE = "CONTRAFLOW_DEMO_CALM"
NIXL_POLL_PAUSE_US = 1000
EMPTY_STEP_SLEEP_S = 0.01
WORKER_PAUSE_S = 0.0002

# A child of vLLM's logger, so that vLLM's handlers and level apply.
log = logging.getLogger("vllm.contraflow_demo")


def register() -> None:
    """Apply the patches once per process; called by vLLM's plugin loader, maybe repeatedly."""
    if os.environ.get(ENABLE) != "1":
        return
    for patch in PATCHES:
        try:
            done = patch()
        except (ImportError, AttributeError, TypeError) as error:
            log.warning("demo calming: %s left out: %s", patch.__name__.strip("_"), error)
        else:
            if done:
                log.info("demo calming is on: %s", done)


def _permit_amx() -> str | None:
    import torch

    if not torch.cpu._is_amx_tile_supported():
        return None
    torch.cpu._init_amx()
    return "AMX tile permission asked for"


def _pause_nixl_polls() -> str | None:
    from nixl_cu12 import _api

    config: Any = _api.nixlBind.nixlAgentConfig
    if _is_patched(config):
        return None
    if not hasattr(config, "pthrDelay"):
        raise AttributeError("nixlAgentConfig has no pthrDelay")

    class CalmAgentConfig(config):  # type: ignore[misc]
        _contraflow_demo = True

        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, NIXL_POLL_PAUSE_US if name == "pthrDelay" else value)

    _api.nixlBind.nixlAgentConfig = CalmAgentConfig
    return f"NIXL polls every {NIXL_POLL_PAUSE_US} us"


def _sleep_after_empty_steps() -> str | None:
    from vllm.v1.engine.core import EngineCoreProc

    step: Callable[[Any], bool] = EngineCoreProc._process_engine_step
    if _is_patched(step):
        return None

    @functools.wraps(step)
    def calm_step(core: Any) -> bool:
        executed = step(core)
        if not executed and core.scheduler.has_requests():
            time.sleep(EMPTY_STEP_SLEEP_S)
        return executed

    EngineCoreProc._process_engine_step = _patched(calm_step)
    return f"engine sleeps {EMPTY_STEP_SLEEP_S * 1000:.0f} ms after an empty step"


def _sleep_between_looks() -> str | None:
    from vllm.distributed.device_communicators import shm_broadcast

    if _is_patched(shm_broadcast.sched_yield):
        return None
    shm_broadcast.sched_yield = _patched(lambda: time.sleep(WORKER_PAUSE_S))
    return f"workers look for messages every {WORKER_PAUSE_S * 1e6:.0f} us"


def _keep_the_core() -> str | None:
    from vllm.platforms.cpu import CpuPlatform

    if CpuPlatform.discover_numa_topology is _no_cores:
        return None
    CpuPlatform.discover_numa_topology = staticmethod(_no_cores)
    return "NIXL workers keep their core"


PATCHES = (
    _permit_amx,
    _pause_nixl_polls,
    _sleep_after_empty_steps,
    _sleep_between_looks,
    _keep_the_core,
)


def _no_cores() -> list[list[int]]:
    return []


def _patched(function: Any) -> Any:
    function._contraflow_demo = True
    return function


def _is_patched(thing: object) -> bool:
    return getattr(thing, "_contraflow_demo", False)
