"""The result of ``contraflow bench`` for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import click

from contraflow.bench.multiturn.measured import Failure, Results
from contraflow.bench.multiturn.report import PARTS, Comparison, Row, Spread
from contraflow.bench.multiturn.statistics import Estimate
from contraflow.cli.bench.counters import worth_showing
from contraflow.cli.operate.output import counted, print_table

NONE = "–"
_COLUMNS = [
    "turns", "leg", "n#", "prompt#", "TTFT ms#", "95 %#", "p50#", "p99#", "TPOT ms#", "E2E s#",
]  # fmt: skip
_PART_COLUMNS = ["pulled#", "P's cache#", "computed#"]
_SECONDS_COLUMNS = ["prefill ms#", "pull ms#"]
_REASONS = 5


def print_result(
    rows: Sequence[Row], compared: Sequence[Comparison], results: Results,
    counters: Mapping[str, Mapping[str, float]],
) -> None:  # fmt: skip
    """Times, ratios, counters and failures on standard output."""
    if rows:
        parts = any(row.parts for row in rows)
        timed = any(row.prefill is not None for row in rows)
        columns = [
            *_COLUMNS, *(_PART_COLUMNS if parts else ()), *(_SECONDS_COLUMNS if timed else ()),
        ]  # fmt: skip
        print_table(columns, [_cells(row, parts, timed) for row in rows])
    if compared:
        click.echo()
        print_table(
            ["turns", "mean TTFT", "n#", "ratio#", "95 %#"],
            [
                (
                    one.scope.label, f"{one.base} ÷ {one.leg}", str(one.turns),
                    f"{one.ttft.value:.2f}", interval(one.ttft, 1, 2),
                )
                for one in compared
            ],
        )  # fmt: skip
    for label, changes in counters.items():
        click.echo(f"\n{label}, meanwhile:")
        for name, value in worth_showing(dict(changes)).items():
            click.echo(f"  {name}  {value:,.6g}" if value % 1 else f"  {name}  {value:,.0f}")
    _print_failures(results.failures)


def _cells(row: Row, parts: bool, timed: bool) -> tuple[str, ...]:
    cells = [
        row.scope.label,
        row.leg,
        str(row.turns),
        NONE if row.prompt_tokens is None else f"{row.prompt_tokens:,.0f}",
        *_times(row.ttft),
        NONE if row.tpot is None else f"{row.tpot.mean.value * 1000:,.1f}",
        f"{row.e2e.mean.value:,.2f}",
    ]
    if parts:
        cells += (f"{row.parts[name]:,.0f}" if name in row.parts else NONE for name in PARTS)
    if timed:
        cells += (NONE if one is None else f"{one * 1000:,.0f}" for one in (row.prefill, row.pull))
    return tuple(cells)


def _times(spread: Spread) -> tuple[str, ...]:
    return (
        f"{spread.mean.value * 1000:,.0f}",
        interval(spread.mean, 1000, 0),
        f"{spread.p50 * 1000:,.0f}",
        f"{spread.p99 * 1000:,.0f}",
    )


def interval(estimate: Estimate, factor: float, digits: int) -> str:
    """Its ends times ``factor``, if it has any."""
    if estimate.low is None or estimate.high is None:
        return NONE
    return f"{estimate.low * factor:,.{digits}f}–{estimate.high * factor:,.{digits}f}"


def _print_failures(failures: Sequence[Failure]) -> None:
    if not failures:
        return
    lost: dict[str, int] = {}
    for failure in failures:
        lost[failure.leg] = lost.get(failure.leg, 0) + failure.lost
    click.echo()
    for leg, unsent in lost.items():
        own = [failure.error for failure in failures if failure.leg == leg]
        click.echo(
            f"FAILED on {leg}: {counted(len(own), 'turn')}, and {unsent:,} that came after them "
            "not sent; none of these is in the figures"
        )
        for error, times in Counter(own).most_common(_REASONS):
            click.echo(f"  {times} × {error}")
