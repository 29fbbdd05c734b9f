"""What the agent shows to Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from prometheus_client import CollectorRegistry

from contraflow.agent.app import Agent
from contraflow.agent.codec import Granted
from contraflow.agent.engines import Engines
from contraflow.agent.feed import HandleFeed
from contraflow.agent.mirror import MirroredHandle
from contraflow.core.errors import ContraflowError
from contraflow.core.handle import LIVE, ClaimRequest, State
from contraflow.runtime import metric_names
from contraflow.runtime.clock import Clock
from contraflow.runtime.metrics import counter, gauge, histogram
from contraflow.v1 import handle_pb2

_TOKENS = ("offered", "proven", "local", "pulled", "computed")


class PullMetrics:
    """Counts pull reports."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._pulls = counter(registry, metric_names.AGENT_PULLS)
        self._tokens = counter(registry, metric_names.AGENT_PULL_TOKENS)
        self._bytes = counter(registry, metric_names.AGENT_PULL_BYTES)

    def observe(self, outcome: str, report: handle_pb2.PullReport) -> None:
        """One report, under the name of its outcome."""
        self._pulls.labels(outcome).inc()
        for kind in _TOKENS:
            self._tokens.labels(kind).inc(getattr(report, f"{kind}_tokens"))
        self._bytes.inc(report.bytes)


class HandleMetrics:
    """Counts what becomes of handles."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._ended = counter(registry, metric_names.AGENT_HANDLES_ENDED)
        self._released = counter(registry, metric_names.AGENT_HANDLES_RELEASED)
        self._renewals = counter(registry, metric_names.AGENT_RENEWALS)

    def observe(self, handle: MirroredHandle) -> None:
        """A handle as it is now."""
        if handle.state not in LIVE:
            self._ended.labels(handle.state).inc()
        if handle.release_cause is not None:
            self._released.labels(handle.release_cause).inc()

    def renewals(self, renewed: int, not_renewed: int) -> None:
        """An order to renew is settled."""
        self._renewals.labels("RENEWED").inc(renewed)
        self._renewals.labels("NOT_RENEWED").inc(not_renewed)


class MeteredAgent(Agent):
    """An Agent that measures its acquires."""

    def __init__(
        self,
        engines: Engines,
        feed: HandleFeed,
        *,
        acquire_timeout: float,
        order_timeout: float,
        registry: CollectorRegistry,
        clock: Clock,
    ) -> None:
        super().__init__(
            engines, feed, acquire_timeout=acquire_timeout, order_timeout=order_timeout
        )
        self._clock = clock
        self._seconds = histogram(registry, metric_names.AGENT_ACQUIRE_SECONDS)

    async def acquire(
        self, engine_id: str, request: ClaimRequest, time_left: float | None
    ) -> Granted:
        """As ``Agent.acquire``."""
        begun = self._clock.now()
        outcome = "CANCELLED"
        try:
            granted = await super().acquire(engine_id, request, time_left)
            outcome = "GRANTED"
            return granted
        except ContraflowError as error:
            outcome = error.reason
            raise
        finally:
            self._seconds.labels(outcome).observe(self._clock.now() - begun)


def show_engines(registry: CollectorRegistry, engines: Engines) -> None:
    """Gauges that are read when they are asked for."""
    gauge(registry, metric_names.AGENT_ENGINES).set_function(lambda: len(engines.attached()))
    handles = gauge(registry, metric_names.AGENT_HANDLES)
    for state in sorted(LIVE):
        handles.labels(state).set_function(partial(_count_in_state, engines, state))
    gauge(registry, metric_names.AGENT_RETAINED_BLOCKS).set_function(
        lambda: sum(handle.num_blocks for handle in _live(engines))
    )


def _count_in_state(engines: Engines, state: State) -> int:
    return sum(handle.state is state for handle in _live(engines))


def _live(engines: Engines) -> Iterator[MirroredHandle]:
    for attachment in engines.attached():
        yield from attachment.mirror.live()
