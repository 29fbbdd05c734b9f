"""The demo's result as a table, or turn by turn where there is no room for one."""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from contraflow.cli.demo.figures import Outcome, TurnFigures

_COLUMNS = (
    "turn", "router", "prompt tokens", "pulled D→P", "P's own cache", "computed",
    "of previous response", "NIXL bytes", "TTFT ms", "response", "plan and reason",
)  # fmt: skip
_LEFT = ("router", "response", "plan and reason")
_TABLE_WIDTH = 118


def render(outcome: Outcome, width: int) -> RenderableType:
    """A table if ``width`` columns hold it, else a block of lines for each turn."""
    if width < _TABLE_WIDTH:
        return Text("\n\n".join(_block(turn) for turn in outcome.turns))
    table = Table(pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in _LEFT else "right")
    for turn in outcome.turns:
        table.add_row(*map(Text, _cells(turn)))
    return table


def console() -> Console:
    """Standard output; where it is no terminal, wide enough for the table."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=max(plain.width, _TABLE_WIDTH + 12))


def _block(turn: TurnFigures) -> str:
    pairs = list(zip(_COLUMNS, _cells(turn), strict=True))
    width = max(map(len, _COLUMNS))
    return "\n".join(f"{name:<{width}}  {cell}" for name, cell in pairs)


def _cells(turn: TurnFigures) -> tuple[str, ...]:
    measured = turn.measured
    return (
        str(turn.number),
        turn.router,
        f"{len(turn.prompt_ids):,}",
        f"{measured.pulled:,}",
        f"{measured.local:,}",
        f"{measured.computed:,}",
        "–" if turn.share is None else f"{turn.share:.1%}",
        f"{measured.bytes:,}",
        f"{turn.ttft * 1000:,.0f}",
        f"{len(turn.output_ids)} ({turn.finish_reason})",
        turn.plan,
    )
