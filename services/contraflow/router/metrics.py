"""The router's metrics: their names, and how a finished turn shows in them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from contraflow.router.costs import Judged
from contraflow.router.report import TurnReport
from contraflow.runtime import metrics as make
from contraflow.runtime.metric_names import Metric

_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0,
)  # fmt: skip

TURNS = Metric(
    "contraflow_router_turns",
    "Finished turns by status, plan and, where a claim was denied, why.",
    ("status", "decision", "reason", "denial"),
)
STAGE_SECONDS = Metric(
    "contraflow_router_stage_seconds",
    "Duration of a stage: acquire, prefill, ttft (to the first byte of the answer), total.",
    ("stage",),
    _SECONDS,
)
PROMPT_TOKENS = Metric(
    "contraflow_router_prompt_tokens",
    "Prompt tokens of prefill legs by source, as the connectors report: pulled, local, computed.",
    ("source",),
)
PREFILL_EXPECTED = Metric(
    "contraflow_router_prefill_expected_seconds",
    "Seconds that prefill legs were expected to take, by decision.",
    ("decision",),
)
PREFILL_MEASURED = Metric(
    "contraflow_router_prefill_measured_seconds", "Seconds that they took.", ("decision",)
)
REGRET = Metric(
    "contraflow_router_regret_seconds",
    "Seconds by which the other decision would have been expected sooner than it took.",
    ("decision",),
)
EXPLORED = Metric(
    "contraflow_router_explored_turns",
    "Turns that took the decision that was expected later, to learn how long it takes.",
    ("decision",),
)
PULLS = Metric("contraflow_router_pulls", "Pulls by outcome, as connectors report.", ("outcome",))
PULLED_BYTES = Metric("contraflow_router_pulled_bytes", "Bytes pulled by prefill engines.")
DISCARDED_TOKENS = Metric(
    "contraflow_router_discarded_tokens",
    "Tokens of offered handles that were not proven to be those of the prompt: not pulled.",
)
RETRIES = Metric("contraflow_router_retries", "Legs that were sent once more, by why.", ("kind",))
RELEASED = Metric(
    "contraflow_router_released_handles",
    "Blocks released unread, by why: outlived by the next turn's handle, ended with their session, "
    "or handed over to a decode engine that does not take them.",
    ("why",),
)
ERRORS = Metric(
    "contraflow_router_errors",
    "Requests that ended in an error of this router: answered with it, cut off, or left.",
    ("kind",),
)
IN_FLIGHT = Metric("contraflow_router_turns_in_flight", "Turns that run now.")
VIEW_ENGINES = Metric("contraflow_router_view_engines", "Engines in the view.")
VIEW_SESSIONS = Metric("contraflow_router_view_sessions", "Session records in the view.")
VIEW_AGE = Metric("contraflow_router_view_age_seconds", "Time since the directory was last heard.")


class RouterMetrics:
    """All metrics of one router, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._turns = make.counter(self.registry, TURNS)
        self._stages = make.histogram(self.registry, STAGE_SECONDS)
        self._tokens = make.counter(self.registry, PROMPT_TOKENS)
        self._expected = make.counter(self.registry, PREFILL_EXPECTED)
        self._measured = make.counter(self.registry, PREFILL_MEASURED)
        self._regret = make.counter(self.registry, REGRET)
        self._explored = make.counter(self.registry, EXPLORED)
        self._pulls = make.counter(self.registry, PULLS)
        self._bytes = make.counter(self.registry, PULLED_BYTES)
        self._retries = make.counter(self.registry, RETRIES)
        self._discarded = make.counter(self.registry, DISCARDED_TOKENS)
        self._released = make.counter(self.registry, RELEASED)
        self._errors = make.counter(self.registry, ERRORS)
        self.in_flight = make.gauge(self.registry, IN_FLIGHT)
        self.view_engines = make.gauge(self.registry, VIEW_ENGINES)
        self.view_sessions = make.gauge(self.registry, VIEW_SESSIONS)
        self.view_age = make.gauge(self.registry, VIEW_AGE)

    def turn_finished(self, report: TurnReport, judged: Judged | None = None) -> None:
        """Count a turn, whatever its end."""
        status = str(report.status or "disconnected")
        self._turns.labels(status, report.decision, report.reason, report.denial).inc()
        for stage, seconds in report.seconds.items():
            self._stages.labels(stage).observe(seconds)
        for retry in report.retries:
            self._retries.labels(retry).inc()
        if report.explores:
            self._explored.labels(report.decision).inc()
        if judged is not None:
            self._expected.labels(report.decision).inc(judged.expected)
            self._measured.labels(report.decision).inc(judged.measured)
            self._regret.labels(report.decision).inc(judged.regret)
        if report.pull is not None:
            self._pulls.labels(report.pull.outcome).inc()
            self._discarded.inc(report.discarded_tokens)
            self._bytes.inc(max(0, report.pull.bytes))
            self._tokens.labels("pulled").inc(max(0, report.pull.pulled_tokens))
            self._tokens.labels("local").inc(max(0, report.pull.local_tokens))
            self._tokens.labels("computed").inc(max(0, report.pull.computed_tokens))

    def released(self, why: str, handles: int) -> None:
        """Count handles that this router has had freed."""
        self._released.labels(why).inc(handles)

    def error(self, kind: str) -> None:
        """Count an error that a client got to see, or a client that left."""
        self._errors.labels(kind).inc()
