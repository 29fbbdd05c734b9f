"""The figures: TTFT by prompt length, and what of it prefill took. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from contraflow.bench.multiturn.report import Row

_SHADES = {"pull from D": "#2b8a3e", "rest of prefill": "#c92a2a", "decode's part": "#adb5bd"}
_FORMATS = ("png", "svg")


class PlotsMissing(Exception):
    """matplotlib is not installed. ``str(error)`` says how to get it."""


def load() -> Any:
    """``matplotlib.figure.Figure``, which draws without a display. Raises PlotsMissing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise PlotsMissing(
            "plots need matplotlib: pip install 'contraflow[services,bench]', or leave --plots out"
        ) from None
    return Figure


def draw(rows: Sequence[Row], legs: Sequence[str], folder: Path) -> list[Path]:
    """Write each figure as PNG and SVG; returns the files, none for a figure without data.

    Raises PlotsMissing or OSError.
    """
    new_figure = load()
    folder.mkdir(parents=True, exist_ok=True)
    by_length = [row for row in rows if row.scope.kind == "length"]
    written = []
    if by_length:
        written += _save(_ttft(new_figure, by_length, legs), folder / "ttft")
    if timed := [row for row in by_length if row.prefill is not None]:
        written += _save(_prefill(new_figure, timed, legs), folder / "prefill")
    return written


def _ttft(new_figure: Any, rows: Sequence[Row], legs: Sequence[str]) -> Any:
    figure = new_figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for leg in legs:
        own = sorted((row for row in rows if row.leg == leg), key=lambda row: _length(row))
        if not own:
            continue
        means = [row.ttft.mean for row in own]
        below = [one.value - (one.value if one.low is None else one.low) for one in means]
        above = [(one.value if one.high is None else one.high) - one.value for one in means]
        axes.errorbar(
            [_length(row) for row in own], [one.value * 1000 for one in means],
            yerr=[[1000 * max(0.0, one) for one in side] for side in (below, above)],
            marker="o", capsize=3, label=leg,
        )  # fmt: skip
    axes.set(xlabel="prompt, tokens", ylabel="TTFT, ms (mean, 95 % interval)", ylim=(0, None))
    axes.legend()
    axes.grid(alpha=0.3)
    return figure


def _prefill(new_figure: Any, rows: Sequence[Row], legs: Sequence[str]) -> Any:
    figure = new_figure(figsize=(8, 4.6), layout="constrained")
    axes = figure.add_subplot()
    scopes = sorted({row.scope for row in rows})
    told = [leg for leg in legs if any(row.leg == leg for row in rows)]
    width = 0.8 / len(told)
    for row in rows:
        at = scopes.index(row.scope) + (told.index(row.leg) - (len(told) - 1) / 2) * width
        bottom = 0.0
        for part, seconds in _parts(row).items():
            axes.bar(at, seconds * 1000, width * 0.92, bottom=bottom, color=_SHADES[part])
            bottom += seconds * 1000
        axes.text(at, bottom, row.leg, rotation=90, ha="center", va="bottom", fontsize=7)
    axes.set_xticks(range(len(scopes)), [scope.label for scope in scopes], rotation=20)
    axes.set(ylabel="TTFT, ms (mean)")
    axes.margins(y=0.2)
    handles = [axes.bar(0, 0, color=shade, label=part) for part, shade in _SHADES.items()]
    axes.legend(handles=handles, loc="upper left")
    return figure


def _parts(row: Row) -> dict[str, float]:
    """Seconds until the first token, by shade. Some turns may not have told of prefill."""
    prefill, pull = row.prefill or 0.0, row.pull or 0.0
    seconds = (pull, max(0.0, prefill - pull), max(0.0, row.ttft.mean.value - prefill))
    return dict(zip(_SHADES, seconds, strict=True))


def _length(row: Row) -> float:
    return row.prompt_tokens if row.prompt_tokens is not None else row.scope.order


def _save(figure: Any, base: Path) -> list[Path]:
    files = [base.with_suffix(f".{kind}") for kind in _FORMATS]
    for file in files:
        figure.savefig(file, dpi=150)
    return files
