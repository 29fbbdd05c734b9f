"""What commands print: tables that fit, plain where nobody watches, or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_ANY_WIDTH = 10_000


def print_json(document: Any) -> None:
    """One document."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def note(text: str) -> None:
    """Something for people, off the way of what is asked for."""
    click.echo(text, err=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table if the terminal is wide enough, else a block of lines for each row.

    Columns whose name ends in "#" are numbers.
    """
    cells = [tuple(row) for row in rows]
    # The width is ours where there is no terminal: whoever reads then wants whole lines.
    terminal = sys.stdout.isatty()
    console = Console(
        force_terminal=terminal, width=None if terminal else _ANY_WIDTH, highlight=False
    )
    table = Table(box=box.SIMPLE_HEAD if terminal else None, pad_edge=False)
    for name in columns:
        justify = "right" if name.endswith("#") else "left"
        table.add_column(name.rstrip("#"), justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for row in cells:
        table.add_row(*map(Text, row))
    unbounded = console.options.update(width=_ANY_WIDTH)
    if Measurement.get(console, unbounded, table).maximum <= console.width:
        for line in _lines(console, table):
            click.echo(line)
    else:
        click.echo("\n\n".join(_block(columns, row) for row in cells))


def span(seconds: float) -> str:
    """A span as people say it: ``0.4 s``, ``12 s``, ``7 min 12 s``, ``3 h 5 min``."""
    if seconds < 1:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def counted(number: int, noun: str) -> str:
    """``1 handle``, ``2 handles``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def enum_name(wrapper: Any, number: int, prefix: str) -> str:
    """The name of an enum's value without its prefix; the number if it is not known here."""
    if number not in wrapper.values():
        return f"unknown ({number})"
    return str(wrapper.Name(number)).removeprefix(prefix)


def _lines(console: Console, table: Table) -> list[str]:
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().rstrip("\n").split("\n")]


def _block(columns: Sequence[str], row: Sequence[str]) -> str:
    names = [name.rstrip("#") for name in columns]
    width = max(map(len, names))
    return "\n".join(f"{name:<{width}}  {cell}" for name, cell in zip(names, row, strict=True))
