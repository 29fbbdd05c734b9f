"""What is made of the legs of ``contraflow.bench.legs``: rows, ratios, limits, tables. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from contraflow.bench.multiturn.measured import Results, Sample
from contraflow.bench.multiturn.report import LATER, comparisons
from contraflow.bench.multiturn.statistics import Estimate
from contraflow.bench.samples import quantile
from contraflow.cli.bench.table import NONE, interval

CACHE_OFF, ONE_WAY = "cache-off", "one-way"
BIDIRECTIONAL, OWN_CACHE = "bidirectional", "own-cache"
LEGS = (CACHE_OFF, ONE_WAY, BIDIRECTIONAL, OWN_CACHE)


@dataclass(frozen=True, slots=True)
class Limit:
    """What mean TTFT of ``base`` ÷ that of ``leg`` must be, on turns from the second on."""

    base: str
    leg: str
    least: float | None = None
    most: float | None = None

    def holds(self, ratio: float) -> bool:
        """True if the ratio is as it must be."""
        return (self.least is None or ratio >= self.least) and (
            self.most is None or ratio <= self.most
        )

    def __str__(self) -> str:
        bounds = ((self.least, "≥"), (self.most, "≤"))
        return " ".join(f"{sign} {bound:g}" for bound, sign in bounds if bound is not None)


LIMITS = (
    Limit(CACHE_OFF, BIDIRECTIONAL, least=8),
    Limit(ONE_WAY, BIDIRECTIONAL, least=2),
    Limit(BIDIRECTIONAL, OWN_CACHE, most=1.2),
)


@dataclass(frozen=True, slots=True)
class Judged:
    """A limit and what was measured."""

    limit: Limit
    ratio: Estimate

    @property
    def holds(self) -> bool:
        """True if the ratio, whatever its interval, is as it must be."""
        return self.limit.holds(self.ratio.value)


@dataclass(frozen=True, slots=True)
class LegRow:
    """TTFT on turns from the second on, in seconds: quartiles. ``prefill`` and ``pull`` are medians
    of what the prefill leg and its pull took, ``prompt_tokens`` of the length."""

    leg: str
    turns: int
    low: float
    median: float
    high: float
    prefill: float | None
    pull: float | None
    prompt_tokens: float | None


def judge(results: Results, seed: int) -> list[Judged]:
    """Each limit, if both of its legs have answered the same turn."""
    judged = []
    for limit in LIMITS:
        compared = comparisons(results, [limit.base, limit.leg], seed)
        judged += [Judged(limit, one.ttft) for one in compared if one.scope == LATER]
    return judged


def rows(results: Results) -> list[LegRow]:
    """By leg, of those that have answered a second turn."""
    found = []
    for leg in LEGS:
        later = _later(results, leg)
        if not later:
            continue
        ttft = [sample.ttft for sample in later]
        seconds = [one for sample in later if (one := sample.prefill_seconds())]
        lengths = [one.prompt_tokens for one in later if one.prompt_tokens is not None]
        low, median, high = (quantile(ttft, share) for share in (0.25, 0.5, 0.75))
        found.append(
            LegRow(
                leg=leg,
                turns=len(later),
                low=low,
                median=median,
                high=high,
                prefill=_median([whole for whole, _ in seconds]),
                pull=_median([pull for _, pull in seconds]),
                prompt_tokens=_median(lengths),
            )
        )
    return found


def _median(values: Sequence[float]) -> float | None:
    return quantile(values, 0.5) if values else None


def problems(results: Results) -> list[str]:
    """Why the figures are not of what the legs are called; empty if they are."""
    found = [
        f"turn {one.turn.turn} of conversation {one.turn.conversation + 1} failed on {one.leg}: "
        f"{one.error}"
        for one in results.failures
    ]
    for leg in LEGS:
        later = _later(results, leg)
        wrong = [sample for sample in later if not _is_as_called(sample)]
        if not later:
            found.append(f"{leg} has answered no second turn")
        elif wrong:
            pull = "must pull" if leg == BIDIRECTIONAL else "must not pull"
            local = "nothing" if leg == CACHE_OFF else "something"
            told = ", ".join(sorted(set(map(_told, wrong))))
            found.append(
                f"{len(wrong)} of {len(later)} turns on {leg} are not what it is called: it "
                f"{pull}, and P must find {local} in its own cache; told of them: {told}"
            )
    return found


def _is_as_called(sample: Sample) -> bool:
    pulled, local = sample.told("pulled"), sample.told("local")
    if pulled is None or local is None:
        return False
    return (pulled > 0) == (sample.leg == BIDIRECTIONAL) and (
        (local > 0) == (sample.leg != CACHE_OFF)
    )


def _told(sample: Sample) -> str:
    names = ("decision", "reason", "denial", "outcome")
    words = [sample.report[name] for name in names if name in sample.report]
    return " ".join(words) or "nothing"


def _later(results: Results, leg: str) -> list[Sample]:
    return [sample for sample in results.of(leg) if sample.turn.turn > 1]


def ttft_table(results: Results) -> tuple[list[str], list[tuple[str, ...]]]:
    """Columns and rows by leg, for people."""
    columns = ["leg", "n#", "prompt#", "TTFT s#", "quartiles#", "prefill s#", "pull s#"]
    return columns, [
        (
            row.leg, str(row.turns), _number(row.prompt_tokens, 0), f"{row.median:.2f}",
            f"{row.low:.2f}–{row.high:.2f}", _number(row.prefill, 2), _number(row.pull, 2),
        )
        for row in rows(results)
    ]  # fmt: skip


def limits_table(judged: Sequence[Judged]) -> tuple[list[str], list[tuple[str, ...]]]:
    """Columns and rows by limit, for people."""
    columns = ["mean TTFT", "ratio#", "95 %#", "must be#", "holds"]
    return columns, [
        (
            f"{one.limit.base} ÷ {one.limit.leg}", f"{one.ratio.value:.2f}",
            interval(one.ratio, 1, 2), str(one.limit),
            "yes" if one.holds else "NO",
        )
        for one in judged
    ]  # fmt: skip


def _number(value: float | None, digits: int) -> str:
    return NONE if value is None else f"{value:,.{digits}f}"


def markdown(results: Results, judged: Sequence[Judged]) -> str:
    """Both tables for a page."""
    tables = (ttft_table(results), limits_table(judged))
    return "\n".join(_markdown(*table) for table in tables)


def _markdown(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    head = [column.rstrip("#") for column in columns]
    rule = ["---:" if column.endswith("#") else "---" for column in columns]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, rule, *lines))


def document(results: Results, judged: Sequence[Judged]) -> dict[str, Any]:
    """What the JSON has beside the document of ``contraflow bench``."""
    return {
        "later_turns": [asdict(row) for row in rows(results)],
        "limits": [{**asdict(one), "holds": one.holds} for one in judged],
        "problems": problems(results),
    }


def all_hold(results: Results, judged: Sequence[Judged]) -> bool:
    """True only if all was measured, as the legs are called, and every limit holds."""
    good = not problems(results) and len(judged) == len(LIMITS)
    return good and all(one.holds for one in judged)
