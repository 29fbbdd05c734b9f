"""Tests that only root can run, with tools that not every machine has (marker ``root``).

Elsewhere they are skipped, and the summary at the end says how many. Root in CI has no excuse:
there a lack is a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest

from contraflow.runtime.config import ConfigError
from contraflow.store.etcd_binary import find_etcd

MARKER = "root"
_SAYS = "for root only: "


@dataclass(frozen=True)
class Machine:
    """What counts of the machine. ``etcd``: one that a kill does no harm."""

    root: bool = True
    iproute2: bool = True
    namespaces: bool = True
    etcd: bool = True
    ci: bool = False

    @classmethod
    @cache
    def here(cls) -> Machine:
        """The one we are on."""
        return cls(
            root=os.geteuid() == 0,
            iproute2=shutil.which("ip") is not None,
            namespaces=_makes_namespaces(),
            etcd=_etcd_survives_kill(),
            ci=bool(os.environ.get("CI")),
        )

    def lack(self) -> str:
        """What is missing; empty if nothing is."""
        if not self.root:
            return "not root"
        if not self.iproute2:
            return "no iproute2"
        if not self.namespaces:
            return "no right to make network namespaces"
        return "" if self.etcd else "no etcd that survives a kill (3.4.22, 3.5.6 or newer)"

    def excuse(self) -> str:
        """Why such a test may be skipped. Fails it where there is a lack and no excuse."""
        lack = self.lack()
        if lack and self.root and self.ci:
            pytest.fail(_SAYS + lack, pytrace=False)
        return _SAYS + lack if lack else ""


class RootOnly:
    """The plugin of pytest's. The machine is asked for once a test of the marker comes."""

    def __init__(self, machine: Callable[[], Machine] = Machine.here) -> None:
        self._machine = machine

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Before the fixtures of a test: skip or fail it if it can not run here."""
        if item.get_closest_marker(MARKER) and (excuse := self._machine().excuse()):
            pytest.skip(excuse)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """At the very end: say how many were skipped."""
        reasons = [str(one.longrepr) for one in terminalreporter.stats.get("skipped", [])]
        if skipped := sum(_SAYS in reason for reason in reasons):
            terminalreporter.write_line(f"{skipped} tests for root only were skipped")


def _makes_namespaces() -> bool:
    name = f"probe-{os.getpid()}"
    try:
        done = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


def _etcd_survives_kill() -> bool:
    try:
        return find_etcd().survives_kill
    except ConfigError:
        return False
