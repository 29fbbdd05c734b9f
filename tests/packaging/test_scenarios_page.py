"""docs/scenarios.md and the tests name the same scenarios."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_scenario_of_the_page_is_tried_and_every_one_tried_is_on_the_page() -> None:
    page = (ROOT / "docs/scenarios.md").read_text()
    listed = set(re.findall(r"^\| (\d\d)", page, re.MULTILINE))
    files = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "tests/engines").rglob("cases_*.py")]
    tests = "".join(file.read_text() for file in files)
    tried = set(re.findall(r"def (?:test_)?scenario_(\d\d)_", tests))
    assert listed == tried
