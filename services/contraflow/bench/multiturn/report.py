"""What the samples come to, by leg, turn and prompt length, as rows and as a document. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from contraflow.bench.multiturn.measured import Results, Sample
from contraflow.bench.multiturn.statistics import Estimate, mean, ratio
from contraflow.bench.samples import quantile

_EDGES = (
    0, 512, 1_024, 2_048, 4_096, 6_144, 8_192, 12_288, 16_384, 20_480, 24_576, 32_768, 65_536,
    131_072,
)  # fmt: skip
PARTS = ("pulled", "local", "computed")


@dataclass(frozen=True, slots=True, order=True)
class Scope:
    """Which turns a figure is about. ``order`` sorts those of a kind: all, later, turn, length."""

    rank: int
    order: int
    kind: str
    label: str


ALL = Scope(0, 0, "all", "all turns")
LATER = Scope(1, 0, "later", "turns from 2 on")


@dataclass(frozen=True, slots=True)
class Spread:
    """Of times in seconds, at least one."""

    mean: Estimate
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Row:
    """A leg's figures within a scope. ``parts`` are mean tokens of a prompt by where its KV came
    from (pulled from a decode engine, the prefill engine's own cache, computed) over those turns
    that told, empty if none did; ``cached`` likewise, of the usage. ``prefill`` are mean seconds
    of the prefill leg, ``pull`` those of them that a pull took; None likewise."""

    leg: str
    scope: Scope
    turns: int
    ttft: Spread
    tpot: Spread | None
    e2e: Spread
    prompt_tokens: float | None
    cached_tokens: float | None
    parts: dict[str, float]
    prefill: float | None = None
    pull: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Mean TTFT of ``base`` ÷ that of ``leg``, over turns that both have answered: above 1, the
    leg is faster."""

    leg: str
    base: str
    scope: Scope
    turns: int
    ttft: Estimate


def scopes(sample: Sample) -> Iterable[Scope]:
    """Those that a turn belongs to."""
    yield ALL
    if sample.turn.turn > 1:
        yield LATER
    yield Scope(2, sample.turn.turn, "turn", f"turn {sample.turn.turn}")
    if sample.prompt_tokens is not None:
        yield length_scope(sample.prompt_tokens)


def length_scope(tokens: int) -> Scope:
    """The bucket of a prompt's length."""
    at = bisect_right(_EDGES, tokens) - 1
    low = _thousands(_EDGES[at])
    label = f"{low}–{_thousands(_EDGES[at + 1])}" if at + 1 < len(_EDGES) else f"{low} and more"
    return Scope(3, _EDGES[at], "length", f"{label} tokens")


def rows(results: Results, legs: Sequence[str], seed: int) -> list[Row]:
    """By scope, then in the order of the legs. Failed turns are in none of them."""
    grouped: dict[tuple[Scope, str], list[Sample]] = defaultdict(list)
    for sample in results.samples:
        for scope in scopes(sample):
            grouped[scope, sample.leg].append(sample)
    wanted = sorted(grouped, key=lambda key: (key[0], legs.index(key[1])))
    return [_row(leg, scope, grouped[scope, leg], seed) for scope, leg in wanted]


def comparisons(results: Results, legs: Sequence[str], seed: int) -> list[Comparison]:
    """Of each further leg with the first one, whose prompt lengths decide the buckets."""
    base, *others = legs
    first = {sample.turn: sample for sample in results.of(base)}
    compared = []
    for leg in others:
        sums: dict[Scope, dict[int, list[tuple[float, float]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for sample in results.of(leg):
            if paired := first.get(sample.turn):
                for scope in scopes(paired):
                    sums[scope][sample.turn.conversation].append((paired.ttft, sample.ttft))
        for scope in sorted(sums):
            groups = [tuple(map(sum, zip(*pairs, strict=True))) for pairs in sums[scope].values()]
            turns = sum(map(len, sums[scope].values()))
            estimate = ratio([(one, other) for one, other in groups], seed)
            compared.append(Comparison(leg, base, scope, turns, estimate))
    return compared


def document(results: Results, legs: Sequence[str], seed: int) -> dict[str, Any]:
    """All of it, samples included, for JSON: seconds, tokens, bytes."""
    return {
        "rows": [_plain(row) for row in rows(results, legs, seed)],
        "ttft_ratios": [_plain(one) for one in comparisons(results, legs, seed)],
        "failed": {
            leg: {
                "answered": sum(1 for _ in results.of(leg)),
                "failed": sum(one.leg == leg for one in results.failures),
                "not_sent": sum(one.lost for one in results.failures if one.leg == leg),
            }
            for leg in legs
        },
        "failures": [asdict(failure) for failure in results.failures],
        "samples": [asdict(sample) for sample in results.samples],
    }


def _row(leg: str, scope: Scope, samples: Sequence[Sample], seed: int) -> Row:
    seconds = [one for sample in samples if (one := sample.prefill_seconds())]
    told = {name: _average(sample.told(name) for sample in samples) for name in PARTS}
    return Row(
        leg=leg,
        scope=scope,
        turns=len(samples),
        ttft=_spread(samples, lambda sample: sample.ttft, seed),
        tpot=_spread([one for one in samples if one.tpot is not None], lambda one: one.tpot, seed)
        if any(one.tpot is not None for one in samples)
        else None,
        e2e=_spread(samples, lambda sample: sample.e2e, seed),
        prompt_tokens=_average(sample.prompt_tokens for sample in samples),
        cached_tokens=_average(sample.cached_tokens for sample in samples),
        parts={name: value for name, value in told.items() if value is not None},
        prefill=_average(whole for whole, _ in seconds),
        pull=_average(pull for _, pull in seconds),
    )


def _spread(samples: Sequence[Sample], of: Callable[[Sample], Any], seed: int) -> Spread:
    groups: dict[int, list[float]] = defaultdict(list)
    for sample in samples:
        groups[sample.turn.conversation].append(of(sample))
    values = [of(sample) for sample in samples]
    estimate = mean(list(groups.values()), seed)
    return Spread(estimate, quantile(values, 0.5), quantile(values, 0.99))


def _average(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _plain(one: Row | Comparison) -> dict[str, Any]:
    scope = {"scope": one.scope.kind, "label": one.scope.label, "from": one.scope.order}
    return {**asdict(one), **scope}


def _thousands(tokens: int) -> str:
    return f"{tokens // 1024}k" if tokens >= 1024 else str(tokens)
