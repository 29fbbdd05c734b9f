"""docs/scenarios.md and the tests name the same scenarios."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_scenario_of_the_page_is_tried_and_every_one_tried_is_on_the_page() -> None:
    page = (ROOT / "docs/scenarios.md").read_text()
    listed = set(re.findall(r"^\| (\d\d)", page, re.MULTILINE))
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    tests += (ROOT / "tests/engines/vllm_scheduler_probe.py").read_text()
    tried = set(re.findall(r"def (?:test_)?scenario_(\d\d)_", tests))
    assert listed == tried
