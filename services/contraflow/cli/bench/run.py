"""Measures: models, warm-up, the conversations, what engines counted; tells it all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import contraflow
from contraflow.bench.multiturn import plots, report
from contraflow.bench.multiturn.driver import Driver, Way, tokens_per_word
from contraflow.bench.multiturn.endpoint import Endpoint, Leg, Model, TurnError
from contraflow.bench.multiturn.history import ChatHistory, History, TokenHistory
from contraflow.bench.multiturn.measured import Failure, Results, Sample
from contraflow.bench.multiturn.workload import Workload
from contraflow.cli.bench.counters import Page, PageUnreadable, read_pages, risen
from contraflow.cli.bench.table import print_result
from contraflow.cli.deployment.errors import DeploymentError
from contraflow.cli.operate.output import note
from contraflow.cli.session import EXIT_FAILED, run_command
from contraflow.runtime.clock import Clock, SystemClock
from contraflow.web import ClientLimits, UpstreamClient


class BenchFailed(DeploymentError):
    """Nothing could be measured. ``str(error)`` says why and what to do."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure. ``timeout`` is the longest silence in seconds; an empty ``marker`` is
    made of the time, an empty ``model`` is asked for."""

    workload: Workload
    legs: tuple[Leg, ...]
    pages: tuple[Page, ...] = ()
    clients: int = 2
    warm_up: int = 2
    seed: int = 0
    marker: str = ""
    model: str = ""
    tokens: bool = False
    ignore_eos: bool = True
    timeout: float = 600.0
    api_key: str = ""
    json: Path | None = None
    plots: Path | None = None


def run(plan: Plan) -> int:
    """The whole command; returns the exit status: 1 also where turns failed."""
    return run_command(partial(measure, plan, SystemClock()))


async def measure(plan: Plan, clock: Clock) -> int:
    """As ``run``. When cancelled it tells what was measured up to then, and goes on with that.

    Raises DeploymentError.
    """
    with _Bar(plan.workload.turn_count * len(plan.legs)) as bar:
        held = await hold(plan, clock, lambda _: bar.step())
    tell(plan, held)
    if held.interrupted:
        raise asyncio.CancelledError
    return EXIT_FAILED if held.results.failures else 0


@dataclass(frozen=True, slots=True)
class Held:
    """What came of a plan. ``counters`` by page, ``interrupted`` if it was cancelled."""

    results: Results
    models: Mapping[str, str]
    marker: str
    counters: Mapping[str, Mapping[str, float]]
    interrupted: bool


async def hold(
    plan: Plan, clock: Clock, on_turn: Callable[[Sample | Failure], None] = lambda _: None
) -> Held:
    """Hold the conversations of a plan. When cancelled meanwhile, it returns what it has.

    Raises DeploymentError.
    """
    if plan.plots:
        _need_plots()
    with closing(UpstreamClient(ClientLimits(pool_timeout=plan.timeout))) as client:
        endpoints = [Endpoint(leg, client, clock, plan.timeout, plan.api_key) for leg in plan.legs]
        marker = plan.marker or f"{clock.wall_ms():x}"
        way = await _way(plan, endpoints, f"{plan.seed}-{marker}")
        await _warm_up(plan, endpoints, way, clock)
        before = await read_pages(plan.pages)
        cancelled = False
        driver = Driver(plan.workload, endpoints, way, clock, on_turn)
        try:
            await driver.run(plan.clients)
        except asyncio.CancelledError:
            cancelled = True
        counters = await _risen(plan.pages, before)
    return Held(driver.results, way.models, marker, counters, cancelled)


async def _way(plan: Plan, endpoints: Sequence[Endpoint], run_id: str) -> Way:
    """Raises BenchFailed if a leg has no model, or one for shorter prompts."""
    models = {one.leg.name: await _model(plan, one) for one in endpoints}
    for leg, model in models.items():
        if model.most_tokens and plan.workload.longest > model.most_tokens:
            raise BenchFailed(
                f"{leg} takes {model.most_tokens:,} tokens, and the longest turn has "
                f"{plan.workload.longest:,} with its answer: shorten --prefix or --turns"
            )
    names = {leg: model.name for leg, model in models.items()}
    extra: dict[str, Any] = {"temperature": 0}
    if plan.ignore_eos:
        extra["ignore_eos"] = True
    rates: dict[str, float] = {}
    for endpoint in () if plan.tokens else endpoints:
        rates[endpoint.leg.name] = await _rate(endpoint, names[endpoint.leg.name], run_id)

    def new_history(leg: str) -> History:
        return TokenHistory() if plan.tokens else ChatHistory(rates[leg])

    return Way(names, run_id, new_history, extra)


async def _model(plan: Plan, endpoint: Endpoint) -> Model:
    if plan.model:
        return Model(plan.model)
    try:
        return await endpoint.model()
    except TurnError as error:
        raise BenchFailed(
            f"{endpoint.leg.name} has told no model: {error}; check --leg, or name it by --model"
        ) from None


async def _rate(endpoint: Endpoint, model: str, run_id: str) -> float:
    try:
        rate = await tokens_per_word(endpoint, model, run_id)
    except TurnError as error:
        raise _not_serving(endpoint, str(error)) from None
    if rate is None:
        note(f"{endpoint.leg.name} tells no usage: one token a word is assumed")
    return rate or 1.0


async def _warm_up(plan: Plan, endpoints: Sequence[Endpoint], way: Way, clock: Clock) -> None:
    if not plan.warm_up:
        return
    first = plan.workload.warm_up(plan.warm_up)
    workload = Workload("warm-up", (first,), plan.workload.common_prefix_tokens)
    for endpoint in endpoints:
        driver = Driver(workload, [endpoint], way, clock)
        await driver.run(1)
        for failure in driver.results.failures:
            raise _not_serving(endpoint, failure.error)


def _not_serving(endpoint: Endpoint, error: str) -> BenchFailed:
    text = f"{endpoint.leg.name} fails before anything is measured: {error}"
    return BenchFailed(
        f"{text}\nwhat to do: see that it serves one request; a server that knows only OpenAI's "
        "fields needs --no-ignore-eos, one with tenants CONTRAFLOW_API_KEY"
    )


async def _risen(
    pages: Sequence[Page], before: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    try:
        return risen({label: dict(one) for label, one in before.items()}, await read_pages(pages))
    except PageUnreadable as error:
        note(f"no counters: {error}")
        return {}


def tell(plan: Plan, held: Held, more: Mapping[str, Any] | None = None) -> None:
    """Print the result and write the files of the plan, with ``more`` in the JSON."""
    if held.interrupted:
        note("stopped: these are the turns measured up to then")
    results, legs = held.results, [leg.name for leg in plan.legs]
    rows = report.rows(results, legs, plan.seed)
    print_result(rows, report.comparisons(results, legs, plan.seed), results, held.counters)
    if plan.json:
        head = {
            "contraflow": contraflow.__version__,
            "workload": asdict(plan.workload),
            "legs": [
                {
                    "name": leg.name, "url": str(leg.origin), "model": held.models[leg.name],
                    "fresh_salt": leg.fresh_salt, "primed": leg.primed,
                    "conversation_id": leg.conversation_id,
                }
                for leg in plan.legs
            ],
            "api": "tokens" if plan.tokens else "chat",
            "clients": plan.clients,
            "seed": plan.seed,
            "marker": held.marker,
            "interrupted": held.interrupted,
            "counters": held.counters,
        }  # fmt: skip
        whole = {**head, **(more or {}), **report.document(results, legs, plan.seed)}
        plan.json.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
        note(f"written: {plan.json}")
    if plan.plots:
        for file in plots.draw(rows, legs, plan.plots):
            note(f"written: {file}")


def _need_plots() -> None:
    try:
        plots.load()
    except plots.PlotsMissing as error:
        raise BenchFailed(str(error)) from None


class _Bar:
    """On standard error, where that is a terminal."""

    def __init__(self, total: int) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("turns"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._progress.add_task("", total=total)

    def step(self) -> None:
        self._progress.advance(self._task)

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
