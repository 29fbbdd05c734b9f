"""The figures, where matplotlib is there; where not, what to do about it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from contraflow.bench.multiturn.measured import Results, Sample, TurnId
from contraflow.bench.multiturn.plots import PlotsMissing, draw
from contraflow.bench.multiturn.report import Row, rows

PARTS = {"pulled": "900", "local": "0", "computed": "100"}


def made(report: dict[str, str], prompt: int | None = 1000) -> list[Row]:
    samples = [
        Sample(leg, TurnId(n, 0, 1), prompt, 2, 0.5, 0.1, 1.0, None, report)
        for leg in ("a", "b")
        for n in range(3)
    ]
    return rows(Results(samples), ["a", "b"], seed=1)


def test_without_matplotlib_it_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(PlotsMissing, match=r"pip install 'contraflow\[services,bench\]'"):
        draw(made(PARTS), ["a", "b"], tmp_path)


@pytest.mark.parametrize(
    ("report", "prompt", "names"),
    [(PARTS, 1000, ["ttft", "prefill"]), ({}, 1000, ["ttft"]), (PARTS, None, [])],
)
def test_a_figure_is_drawn_of_what_is_known(
    report: dict[str, str], prompt: int | None, names: list[str], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    files = draw(made(report, prompt), ["a", "b"], tmp_path / "figures")
    assert [file.name for file in files] == [
        f"{name}.{kind}" for name in names for kind in ("png", "svg")
    ]
    assert all(file.stat().st_size for file in files)
