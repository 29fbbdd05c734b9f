"""docs/scenarios.md and the tests name the same scenarios."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/scenarios.md").read_text()


def tried(folder: str, *patterns: str) -> set[str]:
    """Scenarios that tests in a folder are named for."""
    files = {file for pattern in patterns for file in (ROOT / folder).rglob(pattern)}
    tests = "".join(file.read_text() for file in files)
    return set(re.findall(r"def (?:test_)?scenario_(\d\d)_", tests))


def test_every_scenario_of_the_page_is_tried_and_every_one_tried_is_on_the_page() -> None:
    listed = set(re.findall(r"^\| (\d\d)", PAGE, re.MULTILINE))
    assert listed == tried("tests", "test_*.py") | tried("tests/engines", "cases_*.py")


def test_those_marked_so_are_tried_on_real_engines() -> None:
    marked = set(re.findall(r"^\| (\d\d) R", PAGE, re.MULTILINE))
    assert marked == tried("tests/contract/engine", "test_*.py") | tried(
        "tests/engines", "test_*.py"
    )
