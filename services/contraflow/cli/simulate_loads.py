"""``contraflow simulate --loads``: what the reference does not show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from contraflow.cli.operate.output import print_json, print_table
from contraflow.sim.loads import Load, Outcome, kv_bytes, kv_memory, simulate
from contraflow.sim.reference import LONG, PROMPTS, REPLY_TOKENS, Hardware, Quantity, fit

_COLUMNS = (
    "model",
    "load",
    "clients#",
    "pulls",
    "TTFT p50#",
    "p95#",
    "turns/s#",
    "P s/turn#",
    "GiB·s/turn#",
    "peak GiB#",
    "pushed out#",
)
_MANY = 16
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    load: Load
    outcome: Outcome


def loads(*, seed: int, as_json: bool) -> int:
    """Print each load, one-way and with pulls; the exit status."""
    hardware = fit()
    rows = list(_rows(hardware, seed))
    if as_json:
        print_json({"seed": seed, "loads": [_object(row) for row in rows]})
        return 0
    print_table(_COLUMNS, [_cells(row) for row in rows])
    click.echo(
        "\nTTFT of the prompts that follow others. P s/turn: what prefill nodes compute for a "
        "turn.\nGiB·s/turn, peak: what decode nodes hold for pulls to come, of all and of the "
        "fullest one.\nThe model has long pulls shorter than they were: --reference tells by how "
        "much."
    )
    return 0


def _rows(hardware: Hardware, seed: int) -> Iterator[_Row]:
    for point in LONG:
        if point.quantity is not Quantity.ON:
            continue
        context = point.prompt(PROMPTS - 1) + REPLY_TOKENS
        fit_on_one = int(kv_memory(point.model) / (context * kv_bytes(point.model)))
        for name, clients, nodes, think in (
            ("1P1D", 2, (1, 1), 10.0),
            ("1P1D", _MANY, (1, 1), 10.0),
            ("4P2D", _MANY, (4, 2), 10.0),
            ("1P1D, no pauses", fit_on_one, (1, 1), 0.0),
        ):
            for caching in (False, True):
                for bidirectional in (False, True):
                    load = Load(
                        point.model,
                        point.prefix,
                        bidirectional,
                        caching=caching,
                        clients=clients,
                        prefill=nodes[0],
                        decode=nodes[1],
                        conversations=max(2, _MANY // clients),
                        think_seconds=think,
                        seed=seed,
                    )
                    yield _Row(name, load, simulate(load, hardware))


def _cells(row: _Row) -> tuple[str, ...]:
    outcome, turns = row.outcome, len(row.outcome.turns)
    return (
        row.load.model.name,
        row.name + (", P caches" if row.load.caching else ""),
        str(row.load.clients),
        "ON" if row.load.bidirectional else "OFF",
        f"{outcome.later_ttft(0.5) * 1000:,.0f} ms",
        f"{outcome.later_ttft(0.95) * 1000:,.0f} ms",
        f"{outcome.turns_per_second:.2f}",
        f"{outcome.prefill_seconds / turns:.3f}",
        f"{outcome.held_byte_seconds / turns / _GIB:,.0f}",
        f"{outcome.held_peak / _GIB:,.0f}",
        str(outcome.pushed_out),
    )


def _object(row: _Row) -> dict[str, Any]:
    load, outcome = row.load, row.outcome
    return {
        "model": load.model.name,
        "load": row.name,
        "prefix_tokens": load.prefix,
        "clients": load.clients,
        "prefill_nodes": load.prefill,
        "decode_nodes": load.decode,
        "prefill_caching": load.caching,
        "bidirectional": load.bidirectional,
        "turns": len(outcome.turns),
        "pulled_turns": sum(turn.pulled for turn in outcome.turns),
        "ttft_p50_seconds": outcome.later_ttft(0.5),
        "ttft_p95_seconds": outcome.later_ttft(0.95),
        "turns_per_second": outcome.turns_per_second,
        "prefill_seconds": outcome.prefill_seconds,
        "held_byte_seconds": outcome.held_byte_seconds,
        "held_peak_bytes": outcome.held_peak,
        "pushed_out_handles": outcome.pushed_out,
    }
