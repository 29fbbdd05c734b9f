"""The ``/metrics`` page of an engine, under vLLM's names."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from contraflow.sim.api import Engine, SimCounters

_LABELS = ("model_name", "engine")
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0)
_FINISHED = ("stop", "length", "abort", "error")
_Value = Callable[[SimCounters], float]


def _prompt_tokens(counters: SimCounters) -> int:
    return sum(_by_source(counters).values())


def _by_source(counters: SimCounters) -> dict[str, int]:
    return {
        "local_compute": counters.prompt_tokens_computed,
        "local_cache_hit": counters.prompt_tokens_local_cache_hit,
        "external_kv_transfer": counters.prompt_tokens_external,
    }


def _not_local(counters: SimCounters) -> int:
    return counters.prompt_tokens_external + counters.prompt_tokens_computed


_GAUGES: dict[str, tuple[str, _Value]] = {
    "vllm:num_requests_running": ("Requests in a batch.", lambda c: c.requests_running),
    "vllm:num_requests_waiting": ("Requests in the queue.", lambda c: c.requests_waiting),
    "vllm:kv_cache_usage_perc": ("Share of blocks in use; 1 is all.", lambda c: c.kv_cache_usage),
}
_COUNTERS: dict[str, tuple[str, _Value]] = {
    "vllm:num_preemptions": ("Requests preempted.", lambda c: c.preemptions),
    "vllm:prefix_cache_queries": ("Tokens looked up in the prefix cache.", _prompt_tokens),
    "vllm:prefix_cache_hits": (
        "Tokens found in the prefix cache.",
        lambda c: c.prompt_tokens_local_cache_hit,
    ),
    "vllm:external_prefix_cache_queries": ("Tokens that a connector was asked for.", _not_local),
    "vllm:external_prefix_cache_hits": (
        "Tokens that came by a connector.",
        lambda c: c.prompt_tokens_external,
    ),
    "vllm:prompt_tokens": ("Prompt tokens processed.", _prompt_tokens),
    "vllm:generation_tokens": ("Tokens generated.", lambda c: c.generation_tokens),
    "vllm:nixl_num_failed_transfers": ("Transfers failed.", lambda c: c.nixl_failed_transfers),
    "vllm:nixl_num_kv_expired_reqs": (
        "Requests whose KV expired unread.",
        lambda c: c.nixl_expired_requests,
    ),
    "vllm:nixl_num_notifications_after_expiry": (
        "Notifications for KV that had expired.",
        lambda c: c.nixl_notifications_after_expiry,
    ),
}
_TOTALS: dict[str, tuple[str, _Value]] = {
    "vllm:nixl_bytes_transferred": ("Bytes of transfers.", lambda c: c.nixl_bytes),
    "vllm:nixl_num_descriptors": ("Descriptors of transfers.", lambda c: c.nixl_descriptors),
}
"""Histograms in vLLM; of these only sum and count are known here."""


class MetricsPage(Collector):
    """Reads the engines' counters when the page is asked for."""

    def __init__(self, model_name: str, engines: Sequence[Engine]) -> None:
        self._model_name = model_name
        self._engines = engines
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self) -> bytes:
        """The page as it is now."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """For prometheus_client: all families, with a sample for each engine."""
        yield from self._gauges_and_counters()
        yield from self._labelled()
        yield from self._histograms()

    def _each(self) -> list[tuple[list[str], SimCounters]]:
        return [
            ([self._model_name, str(rank)], engine.counters)
            for rank, engine in enumerate(self._engines)
        ]

    def _gauges_and_counters(self) -> Iterable[Metric]:
        for name, (text, value) in _GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=_LABELS)
            for labels, counters in self._each():
                gauge.add_metric(labels, value(counters))
            yield gauge
        for name, (text, value) in _COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=_LABELS)
            for labels, counters in self._each():
                counter.add_metric(labels, value(counters))
            yield counter

    def _labelled(self) -> Iterable[Metric]:
        tokens = CounterMetricFamily(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens by where their KV came from.",
            labels=(*_LABELS, "source"),
        )
        finished = CounterMetricFamily(
            "vllm:request_success", "Requests finished.", labels=(*_LABELS, "finished_reason")
        )
        for labels, counters in self._each():
            for source, value in _by_source(counters).items():
                tokens.add_metric([*labels, source], value)
            for reason, value in (dict.fromkeys(_FINISHED, 0) | counters.finished).items():
                finished.add_metric([*labels, reason], value)
        yield tokens
        yield finished

    def _histograms(self) -> Iterable[Metric]:
        seconds = HistogramMetricFamily(
            "vllm:nixl_xfer_time_seconds", "Duration of transfers.", labels=_LABELS
        )
        for labels, counters in self._each():
            times = sorted(counters.nixl_transfers)
            buckets = [(str(le), bisect_left(times, le)) for le in _SECONDS]
            seconds.add_metric(labels, [*buckets, ("+Inf", len(times))], sum(times))
        yield seconds
        for name, (text, value) in _TOTALS.items():
            histogram = HistogramMetricFamily(name, text, labels=_LABELS)
            for labels, counters in self._each():
                transfers = len(counters.nixl_transfers)
                histogram.add_metric(labels, [("+Inf", transfers)], value(counters))
            yield histogram
