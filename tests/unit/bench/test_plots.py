"""The figures, where matplotlib is there; where not, what to do about it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from contraflow.bench.multiturn.measured import Results, Sample, TurnId
from contraflow.bench.multiturn.plots import PlotsMissing, draw
from contraflow.bench.multiturn.report import Row, rows

LEGS = ["leg one", "leg two"]
TOLD = {"pulled": "900", "prefill_s": "0.4", "pull_s": "0.1"}


def made(report: dict[str, str], prompt: int | None = 1000) -> list[Row]:
    samples = [
        Sample(leg, TurnId(n, 0, 1), prompt, 2, 0.5, 0.1, 1.0, None, report)
        for leg in LEGS
        for n in range(3)
    ]
    return rows(Results(samples), LEGS, seed=1)


def test_without_matplotlib_it_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(PlotsMissing, match=r"pip install 'contraflow\[services,bench\]'"):
        draw(made(TOLD), LEGS, tmp_path)


@pytest.mark.parametrize(
    ("report", "prompt", "labels"),
    [
        (
            TOLD,
            1000,
            {
                "ttft": ("prompt, tokens", "leg one", "leg two"),
                "prefill": ("pull from D", "rest of prefill", "leg one", "leg two"),
            },
        ),
        ({}, 1000, {"ttft": ("prompt, tokens", "leg one", "leg two")}),
        ({"pulled": "900"}, 1000, {"ttft": ("prompt, tokens", "leg one", "leg two")}),
        (TOLD, None, {}),
    ],
    ids=["all", "no report of the router", "a report without times", "no lengths"],
)
def test_a_figure_is_drawn_of_what_is_known(
    report: dict[str, str], prompt: int | None, labels: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    files = draw(made(report, prompt), LEGS, tmp_path / "figures")

    assert [file.name for file in files] == [
        f"{name}.{kind}" for name in labels for kind in ("png", "svg")
    ]
    for name, texts in labels.items():
        svg = (tmp_path / "figures" / f"{name}.svg").read_text()
        # Letters are drawn as curves; the text stands beside them in a comment.
        assert [text for text in texts if f"<!-- {text} -->" not in svg] == []
        png = (tmp_path / "figures" / f"{name}.png").read_bytes()
        assert png.startswith(b"\x89PNG")
        assert png.endswith(b"IEND\xaeB`\x82")
