"""The demo's result as a table, or turn by turn where there is no room for one."""

from __future__ import annotations

from rich import box
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from contraflow.cli.demo.figures import Outcome, TurnFigures

_COLUMNS = (
    "turn", "router", "prompt\ntokens", "pulled\nD→P", "P's own\ncache", "computed",
    "pulled of the\nprevious response", "NIXL\nbytes", "TTFT\nms", "response", "plan and reason",
)  # fmt: skip
_LEFT = ("router", "response", "plan and reason")
_ANY_WIDTH = 10_000
_WIDTH_WITHOUT_TERMINAL = 160


def render(outcome: Outcome, console: Console) -> RenderableType:
    """A table if the console is wide enough, else a block of lines for each turn."""
    table = _table(outcome)
    natural = Measurement.get(console, console.options.update(width=_ANY_WIDTH), table)
    if natural.maximum <= console.width:
        return table
    return Text("\n\n".join(_block(turn) for turn in outcome.turns))


def _table(outcome: Outcome) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in _LEFT else "right", no_wrap=True)
    for turn in outcome.turns:
        table.add_row(*map(Text, _cells(turn)))
    return table


def console() -> Console:
    """Standard output; where it is no terminal, wide enough for the table."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=_WIDTH_WITHOUT_TERMINAL)


def _block(turn: TurnFigures) -> str:
    names = [name.replace("\n", " ") for name in _COLUMNS]
    width = max(map(len, names))
    pairs = zip(names, _cells(turn), strict=True)
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
