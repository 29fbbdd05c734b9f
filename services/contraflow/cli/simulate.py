"""``contraflow simulate --reference``: the published end points beside the model's."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import click

from contraflow.cli.operate.output import print_json, print_table
from contraflow.sim.reference import (
    HOST_SECONDS_PER_TOKEN,
    LONG,
    RANK_BANDWIDTH,
    SHORT,
    EndPoint,
    Hardware,
    fit,
    terms,
)

_ALLOWED = 0.15
_COLUMNS = ("model", "quantity", "length#", "", "published#", "simulated#", "deviation#")


@dataclass(frozen=True, slots=True)
class _Row:
    point: EndPoint
    fitted: bool
    seconds: float

    @property
    def deviation(self) -> float:
        return self.seconds / self.point.seconds - 1


def reference(*, as_json: bool) -> int:
    """Print the end points; the exit status: 1 if one is off by more than 15 %."""
    hardware = fit()
    rows = [
        _Row(point, fitted, terms(point).seconds(hardware))
        for points, fitted in ((SHORT, True), (LONG, False))
        for point in points
    ]
    if as_json:
        print_json({"fitted": asdict(hardware), "end_points": [_object(row) for row in rows]})
    else:
        print_table(_COLUMNS, [_cells(row) for row in rows])
        _tell(hardware, rows)
    return 0 if all(abs(row.deviation) <= _ALLOWED for row in rows) else 1


def _cells(row: _Row) -> tuple[str, ...]:
    return (
        row.point.model.name,
        row.point.quantity.value,
        f"{row.point.prefix:,}",
        "fitted" if row.fitted else "predicted",
        f"{row.point.seconds * 1000:,.0f} ms",
        f"{row.seconds * 1000:,.0f} ms",
        f"{row.deviation:+.1%}",
    )


def _object(row: _Row) -> dict[str, Any]:
    return {
        "model": row.point.model.name,
        "quantity": row.point.quantity.name,
        "prefix_tokens": row.point.prefix,
        "prompt_tokens": row.point.tokens,
        "fitted": row.fitted,
        "published_seconds": row.point.seconds,
        "simulated_seconds": row.seconds,
        "deviation": row.deviation,
    }


def _tell(hardware: Hardware, rows: list[_Row]) -> None:
    click.echo(
        f"\nfitted on the short lengths, for both models: FLOPs take "
        f"{hardware.tensor_slowdown:.1f} × the tensor cores' best, reading weights "
        f"{hardware.weight_read_slowdown:.1f} × the memory's, "
        f"a pull {hardware.pull_setup_seconds * 1000:.1f} ms "
        f"and {hardware.descriptor_seconds * 1e6:.2f} µs a descriptor, "
        f"a request {hardware.request_seconds * 1000:.0f} ms"
    )
    click.echo(
        f"published elsewhere: {RANK_BANDWIDTH / 1e9:.0f} GB/s a rank, "
        f"{HOST_SECONDS_PER_TOKEN * 1e6:.1f} µs a token at each server"
    )
    beyond = [row for row in rows if abs(row.deviation) > _ALLOWED]
    worst = max(rows, key=lambda row: abs(row.deviation))
    click.echo(
        f"beyond {_ALLOWED:.0%}: {len(beyond)} of {len(rows)}, at most {abs(worst.deviation):.1%}"
    )
