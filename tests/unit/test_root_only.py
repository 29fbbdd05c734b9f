"""Tests for root only: skipped with a reason, counted, and failed where nothing excuses it."""

from __future__ import annotations

import pytest
from tests.support.root_only import Machine, RootOnly

pytest_plugins = ["pytester"]

TESTS = """
import pytest

@pytest.fixture
def ring():
    raise AssertionError("set up where the test can not run")

@pytest.mark.root
def test_one(ring): pass

@pytest.mark.root
class TestMore:
    def test_two(self): pass

def test_of_everybody(): pass
"""


@pytest.mark.parametrize(
    ("machine", "lack"),
    [
        (Machine(), ""),
        (Machine(root=False, iproute2=False), "not root"),
        (Machine(iproute2=False, namespaces=False), "no iproute2"),
        (Machine(namespaces=False), "no right to make network namespaces"),
        (Machine(etcd=False), "no etcd that survives a kill (3.4.22, 3.5.6 or newer)"),
    ],
)
def test_what_is_missing_is_said(machine: Machine, lack: str) -> None:
    assert machine.lack() == lack


@pytest.mark.parametrize(
    "machine",
    [
        Machine(root=False),
        Machine(root=False, ci=True),
        Machine(iproute2=False),
        Machine(etcd=False),
    ],
)
def test_elsewhere_they_are_skipped_and_counted(
    pytester: pytest.Pytester, machine: Machine
) -> None:
    result = run(pytester, machine)
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(["2 tests for root only were skipped"])


@pytest.mark.parametrize(
    "machine", [Machine(iproute2=False, ci=True), Machine(etcd=False, ci=True)]
)
def test_root_in_ci_has_no_excuse(pytester: pytest.Pytester, machine: Machine) -> None:
    result = run(pytester, machine)
    result.assert_outcomes(passed=1, errors=2)
    result.stdout.no_fnmatch_line("*were skipped*")


def run(pytester: pytest.Pytester, machine: Machine) -> pytest.RunResult:
    pytester.makepyfile(TESTS)
    plugin = RootOnly(lambda: machine)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-W", "ignore", plugins=[plugin])
