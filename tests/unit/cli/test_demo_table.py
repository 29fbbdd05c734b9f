"""The result is readable on any terminal, and on none."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from tests.unit.cli.test_figures import FIRST, GOOD

from contraflow.cli.demo.figures import Outcome
from contraflow.cli.demo.table import console, render

VALUES = ("router-1", "100", "60", "30", "10", "95.0%", "4,096", "200", "3 (tool_calls)",
          "PULL HANDLE_AVAILABLE", "RECOMPUTE NO_HANDLE")  # fmt: skip


def rendered(width: int) -> str:
    out = Console(file=io.StringIO(), width=width)
    out.print(render(Outcome((FIRST, GOOD)), out))
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


@pytest.mark.parametrize("width", [200, 160, 140, 120, 80, 60])
def test_every_value_is_there_whole_at_every_width(width: int) -> None:
    text = rendered(width)
    assert [value for value in VALUES if value not in text] == []
    assert max(map(len, text.splitlines())) <= width


def test_without_a_terminal_the_table_is_not_squeezed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert console().width >= 140
