"""The demo's calming plugin: off unless asked for, and harmless on engines it does not know."""

from __future__ import annotations

import importlib.util
import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

PLUGIN = Path(__file__).resolve().parents[2] / "deploy/demo/plugin/contraflow_demo_engine.py"
CORE = "vllm.v1.engine.core"
SHM = "vllm.distributed.device_communicators.shm_broadcast"
PLATFORM = "vllm.platforms.cpu"


@pytest.fixture
def plugin() -> Any:
    spec = importlib.util.spec_from_file_location("contraflow_demo_engine", PLUGIN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Engine(SimpleNamespace):
    """Stands in for vLLM's and NIXL's modules, as far as the plugin touches them."""

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        torch = ModuleType("torch")
        torch.cpu = SimpleNamespace(_is_amx_tile_supported=lambda: False)  # type: ignore[attr-defined]
        nixl = ModuleType("nixl_cu12")
        nixl._api = SimpleNamespace(nixlBind=self.nixl)  # type: ignore[attr-defined]
        core = ModuleType(CORE)
        core.EngineCoreProc = self.core  # type: ignore[attr-defined]
        shm = ModuleType(SHM)
        shm.sched_yield = self.yielding  # type: ignore[attr-defined]
        platform = ModuleType(PLATFORM)
        platform.CpuPlatform = self.platform  # type: ignore[attr-defined]
        modules = (torch, nixl, core, shm, platform)
        for path in (CORE, SHM, PLATFORM):
            parts = path.split(".")
            for end in range(1, len(parts)):
                name = ".".join(parts[:end])
                monkeypatch.setitem(sys.modules, name, ModuleType(name))
        for module in modules:
            monkeypatch.setitem(sys.modules, module.__name__, module)
            parent, _, name = module.__name__.rpartition(".")
            if parent:
                monkeypatch.setattr(sys.modules[parent], name, module, raising=False)
        self.shm = shm


class AgentConfig:
    pthrDelay = 0


class Core:
    scheduler = SimpleNamespace(has_requests=lambda: True)

    def _process_engine_step(self) -> bool:
        return False


class Platform:
    @classmethod
    def discover_numa_topology(cls) -> list[list[int]]:
        return [[0, 1]]


def yielding() -> None:
    raise AssertionError("yields")


def fresh(known: type) -> type:
    return type(known.__name__, (), dict(vars(known)))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    bind = SimpleNamespace(nixlAgentConfig=fresh(AgentConfig))
    engine = Engine(nixl=bind, core=fresh(Core), platform=fresh(Platform), yielding=yielding)
    engine.install(monkeypatch)
    return engine


def test_off_unless_asked_for(plugin: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(plugin.ENABLE, raising=False)
    plugin.register()
    assert engine.shm.sched_yield is yielding
    assert engine.platform.discover_numa_topology() == [[0, 1]]


def test_each_patch_applies_once_and_says_so(
    plugin: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slept: list[float] = []
    monkeypatch.setenv(plugin.ENABLE, "1")
    monkeypatch.setattr(plugin.time, "sleep", slept.append)
    with caplog.at_level(logging.INFO):
        plugin.register()
        plugin.register()
    assert len(caplog.records) == 4
    config = engine.nixl.nixlAgentConfig()
    config.pthrDelay = 0
    assert config.pthrDelay == plugin.NIXL_POLL_PAUSE_US
    assert engine.core()._process_engine_step() is False
    engine.shm.sched_yield()
    assert slept == [plugin.EMPTY_STEP_SLEEP_S, plugin.WORKER_PAUSE_S]
    assert engine.platform.discover_numa_topology() == []


def test_an_unknown_engine_is_left_as_it_is(
    plugin: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(plugin.ENABLE, "1")
    del engine.core._process_engine_step
    engine.nixl.nixlAgentConfig = object
    plugin.register()
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert engine.nixl.nixlAgentConfig is object
    assert engine.shm.sched_yield is not yielding
