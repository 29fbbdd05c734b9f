"""Results of ``contraflow bench`` beside the reference's published figures. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.ec2.models import BIDIRECTIONAL, ONE_WAY, TURNS, Model

LEGS = (ONE_WAY, BIDIRECTIONAL)
# As published: nothing is said of leaving out first turns, which have nothing to pull back.
_SCOPE = "all"
_READS = "vllm:nixl_xfer_time_seconds"
_FEW = 1.0  # tokens of a prompt, on average


class NotComparable(Exception):
    """A result is not of the reference's experiment. ``str(error)`` says why and what to do."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One length. Mean TTFT in milliseconds with its 95 % interval, by leg; ``ratio``: one-way
    divided by bidirectional, over turns that both answered. ``transfer``: mean milliseconds of
    a read by prefill, None if its counters are not in the result."""

    prefix: int
    ttft: Mapping[str, tuple[float, float | None, float | None]]
    ratio: float
    transfer: float | None


def read(path: Path) -> Measured:
    """A result file. Raises NotComparable."""
    try:
        return measured(json.loads(path.read_text()))
    except NotComparable as error:
        raise NotComparable(f"{path}: {error}") from None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise NotComparable(
            f"{path}: not a result of `contraflow bench --json` ({error!r})"
        ) from None


def measured(result: Mapping[str, Any]) -> Measured:
    """As ``read``, from what is in the file. LookupError and the like if it is something else."""
    conversations = result["workload"]["conversations"]
    prefixes = {one["prefix_tokens"] for one in conversations}
    if len(prefixes) != 1:
        raise NotComparable(
            f"it mixes {len(prefixes)} lengths of prefixes; measure one at a time, as bench.sh "
            "does: --prefix 24k"
        )
    if any(len(one["turns"]) != TURNS for one in conversations):
        raise NotComparable(
            f"its conversations have not {TURNS} turns each, so that the first one, which pulls "
            f"nothing, has another share: measure with --turns {TURNS}, as bench.sh does"
        )
    if result["interrupted"] or result["failures"]:
        raise NotComparable(
            f"{len(result['failures'])} turns failed, or it was interrupted: see `failures` in "
            "the file and the journals, and measure again"
        )
    rows = {row["leg"]: row for row in result["rows"] if row["scope"] == _SCOPE}
    if missing := [leg for leg in LEGS if leg not in rows]:
        raise NotComparable(f"there is no leg {', '.join(missing)}: name the legs as bench.sh does")
    for leg in LEGS:
        _must_be_what_it_says(leg, rows[leg]["parts"])
    [ratio] = [
        one["ttft"]["value"]
        for one in result["ttft_ratios"]
        if one["scope"] == _SCOPE and (one["base"], one["leg"]) == LEGS
    ]
    ttft = {leg: _milliseconds(rows[leg]["ttft"]["mean"]) for leg in LEGS}
    return Measured(prefixes.pop(), ttft, ratio, _transfer(result["counters"].get("prefill", {})))


def _must_be_what_it_says(leg: str, parts: Mapping[str, float]) -> None:
    if not {"pulled", "local"} <= set(parts):
        raise NotComparable(
            f"leg {leg} does not tell where its prompts came from: it has to go through a "
            "Contraflow router"
        )
    if parts["local"] >= _FEW:
        raise NotComparable(
            f"prefill found {parts['local']:,.0f} tokens a turn in its own cache on leg {leg}: the "
            "reference has it off; ENGINE_ARGS of prefill.env needs --no-enable-prefix-caching"
        )
    if leg == ONE_WAY and parts["pulled"] >= _FEW:
        raise NotComparable(
            f"leg {leg} pulled {parts['pulled']:,.0f} tokens a turn: it went to the wrong router; "
            "that of /etc/contraflow/router-one-way.toml listens on port 8001"
        )
    if leg == BIDIRECTIONAL and parts["pulled"] < _FEW:
        raise NotComparable(
            f"leg {leg} pulled nothing: see decision, reason and outcome in `samples`, and "
            "`contraflow ps` for two engines of one class that both tell bidirectional"
        )


def _milliseconds(estimate: Mapping[str, Any]) -> tuple[float, float | None, float | None]:
    low, high = (None if estimate[end] is None else estimate[end] * 1000 for end in ("low", "high"))
    return estimate["value"] * 1000, low, high


def _transfer(counters: Mapping[str, float]) -> float | None:
    # Only the bidirectional leg has prefill read anything.
    reads = counters.get(f"{_READS}_count", 0.0)
    return counters[f"{_READS}_sum"] / reads * 1000 if reads else None


COLUMNS = ["prefix#", "what", "ms#", "95 %#", "published#", "÷#"]


def table(results: Iterable[Measured], model: Model) -> list[tuple[str, ...]]:
    """Rows for ``COLUMNS``. What was not published has dashes."""
    rows: list[tuple[str, ...]] = []
    for one in sorted(results, key=lambda result: result.prefix):
        prefix = f"{one.prefix:,}"
        known = {leg: model.ttft[leg].get(one.prefix) for leg in LEGS}
        for leg in LEGS:
            value, low, high = one.ttft[leg]
            interval = "–" if low is None or high is None else f"{low:,.0f}–{high:,.0f}"
            cells = (f"TTFT {leg}", f"{value:,.0f}", interval)
            rows.append((prefix, *cells, *_beside(value, known[leg], 0)))
        off, on = known[ONE_WAY], known[BIDIRECTIONAL]
        published = off / on if off and on else None
        rows.append((prefix, "ratio", f"{one.ratio:.2f}", "", *_beside(one.ratio, published, 2)))
        if one.transfer is not None:
            known_transfer = model.transfer.get(one.prefix)
            cells = ("transfer", f"{one.transfer:,.0f}", "")
            rows.append((prefix, *cells, *_beside(one.transfer, known_transfer, 0)))
    return rows


def _beside(value: float, published: float | None, digits: int) -> tuple[str, str]:
    if published is None:
        return "–", "–"
    return f"{published:,.{digits}f}", f"{value / published:.2f}"
