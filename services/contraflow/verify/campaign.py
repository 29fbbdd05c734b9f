"""Many seeds at once, and the planted defects, on all cores."""

from __future__ import annotations

import logging
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context

import structlog

from contraflow.verify.planted import PLANTS
from contraflow.verify.run import Result, Schedule, run

PLANT_TURNS = 300
_PLANT_SEEDS = 40


@dataclass(slots=True)
class Campaign:
    """What came of it. ``caught``: the seed that caught each planted defect."""

    turns: int = 0
    faulty: int = 0
    excused: int = 0
    blocks: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    failed: list[Result] = field(default_factory=list)
    caught: dict[str, int | None] = field(default_factory=dict)

    @property
    def violations(self) -> int:
        """Of all seeds."""
        return sum(len(result.violations) for result in self.failed)

    def add(self, result: Result) -> None:
        """One more seed has ended."""
        self.turns += result.turns
        self.faulty += result.faulty
        self.excused += result.excused
        self.blocks += result.blocks
        self.seen += result.seen
        if result.violations:
            self.failed.append(result)


def run_all(schedules: Sequence[Schedule], jobs: int, told: Callable[[Campaign], None]) -> Campaign:
    """Run schedules; ``told`` hears after each."""
    campaign = Campaign()
    with _workers(jobs) as pool:
        for result in _results(pool, [pool.submit(run_quietly, one) for one in schedules]):
            campaign.add(result)
            told(campaign)
    campaign.failed.sort(key=lambda result: result.schedule.seed)
    return campaign


def catch_all(campaign: Campaign, jobs: int, told: Callable[[str, int | None], None]) -> None:
    """Plant each defect and look for a seed that catches it; None if none does."""
    with _workers(jobs) as pool:
        waiting = {pool.submit(catch, number): plant for number, plant in enumerate(PLANTS)}
        for future in as_completed(waiting):
            name = waiting[future].name
            campaign.caught[name] = future.result()
            told(name, campaign.caught[name])


def catch(number: int) -> int | None:
    """The first seed whose checks catch a planted defect."""
    plant = PLANTS[number]
    for seed in range(_PLANT_SEEDS):
        with plant.patch():
            result = run_quietly(Schedule(seed, PLANT_TURNS))
        if any(invariant in plant.breaks for invariant, _ in result.violations):
            return seed
    return None


def run_quietly(schedule: Schedule) -> Result:
    """As ``run``; what the parts log is not written."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable(logging.CRITICAL)
    try:
        return run(schedule)
    finally:
        logging.disable(logging.NOTSET)


@contextmanager
def _workers(jobs: int) -> Iterator[ProcessPoolExecutor]:
    # Spawned: nothing is carried over.
    with ProcessPoolExecutor(jobs, get_context("spawn"), _leave_signals) as pool:
        try:
            yield pool
        except BaseException:
            # By Ctrl-C: nobody waits for what still runs.
            for worker in list(pool._processes.values()):
                worker.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _leave_signals() -> None:
    # Ctrl-C goes to all of a terminal's processes: it is for the first of them to hear.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _results(pool: ProcessPoolExecutor, futures: list[Future[Result]]) -> Iterator[Result]:
    for future in as_completed(futures):
        yield future.result()
        futures.remove(future)
