"""What operators' commands print, in any width and without a terminal."""

from __future__ import annotations

import sys

import pytest

from contraflow.cli.operate.output import print_table, span
from contraflow.cli.operate.plan import SENTENCES
from contraflow.core.plan import PlanReason

COLUMNS = ("ENGINE", "HANDLES#", "NOTE")
ROWS = [("decode-" + "x" * 40, "12", "a longer remark"), ("p", "1,234", "")]


def printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int | None
) -> str:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: width is not None)
    monkeypatch.setenv("COLUMNS", str(width or 20))
    print_table(COLUMNS, ROWS)
    return capsys.readouterr().out


@pytest.mark.parametrize("width", [1, 20, 60, 200, None])
def test_nothing_is_cut_off_at_any_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int | None
) -> None:
    text = printed(capsys, monkeypatch, width)
    for row in ROWS:
        assert all(cell in text for cell in row)


def test_a_wide_terminal_gets_a_line_for_each_row_and_a_narrow_one_a_block(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = printed(capsys, monkeypatch, 200).splitlines()
    assert any(ROWS[0][0] in line and "a longer remark" in line for line in wide)
    narrow = printed(capsys, monkeypatch, 40).splitlines()
    assert not any(ROWS[0][0] in line and "a longer remark" in line for line in narrow)


def test_without_a_terminal_there_are_no_escapes_even_where_colour_is_forced(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    lines = printed(capsys, monkeypatch, None).splitlines()
    assert not any("\x1b" in line or line != line.rstrip() for line in lines)
    assert [line.split()[0] for line in lines] == ["ENGINE", ROWS[0][0], "p"]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.04, "0.0 s"), (0.96, "1.0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (432, "7 min 12 s"),
     (11_100, "3 h 5 min")],
)  # fmt: skip
def test_spans_are_said_as_people_say_them(seconds: float, said: str) -> None:
    assert span(seconds) == said


def test_every_reason_of_a_plan_has_a_sentence() -> None:
    assert set(SENTENCES) == set(PlanReason)
