"""``contraflow verify``: the system against its invariants, in virtual time."""

from __future__ import annotations

import os
import time
from collections import Counter

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from contraflow.verify import coverage
from contraflow.verify.campaign import Campaign, catch_all, run_all, run_quietly
from contraflow.verify.minimise import Minimiser
from contraflow.verify.planted import PLANTS
from contraflow.verify.run import Result, Schedule

_SHOWN = 5


def verify(
    seeds: int, turns: int, first: int, jobs: int | None, least: int, *, planted: bool
) -> int:
    """Run many seeds; the exit status."""
    out, progress = Console(), Console(stderr=True)
    jobs = jobs or os.cpu_count() or 1
    began = time.monotonic()
    schedules = [Schedule(seed, turns) for seed in range(first, first + seeds)]
    with _Bar(progress, "seeds", seeds) as (bar, task):
        campaign = run_all(
            schedules, jobs,
            lambda now: bar.update(
                task, advance=1, note=f"{now.turns:,} turns, {now.violations} violations"
            ),
        )  # fmt: skip
    seconds = time.monotonic() - began
    if planted:
        with _Bar(progress, "planted", len(PLANTS)) as (bar, task):
            catch_all(campaign, jobs, lambda name, seed: bar.update(task, advance=1, note=name))
    _tell_coverage(out, campaign.seen, least)
    _tell_planted(out, campaign)
    for result in campaign.failed[:_SHOWN]:
        _tell_failure(out, result)
    shares = max(1, campaign.turns)
    out.print(
        f"{campaign.turns:,} turns of {seeds} seeds in {seconds:.0f} s, "
        f"{campaign.turns / seconds:.0f} a second on {jobs} cores; {campaign.blocks // shares} "
        f"blocks a turn, {campaign.faulty / shares:.0%} under a fault, {campaign.excused:,} not "
        "served because no engine could",
        highlight=False,
    )
    missed = coverage.missing(campaign.seen, least)
    uncaught = sum(seed is None for seed in campaign.caught.values())
    kinds = len(campaign.caught)
    if missed:
        out.print(f"met fewer than {least} times: {', '.join(missed)}", highlight=False)
    out.print(
        f"violations {campaign.violations} of {campaign.turns} turns, planted {kinds} caught "
        f"{kinds - uncaught}",
        highlight=False,
    )
    return 1 if campaign.violations or uncaught or missed else 0


def replay(seed: int, turns: int, skip: frozenset[int], *, shorten: bool) -> int:
    """Run one schedule again and tell all; the exit status."""
    out = Console()
    schedule = Schedule(seed, turns, skip)
    result = run_quietly(schedule)
    for number, fault in enumerate(result.begun):
        out.print(f"fault {number:3}  {fault}{'  (left out)' if number in skip else ''}")
    for invariant, what in result.violations:
        out.print(f"{invariant}  {what}", highlight=False, markup=False, soft_wrap=True)
    if shorten and result.violations:
        best = Minimiser(
            run_quietly, lambda one: out.print(f"still fails: {_command(one)}", soft_wrap=True)
        ).shorten(result)
        out.print(f"the shortest found: {_command(best)}", soft_wrap=True)
    found = len(result.violations)
    out.print(f"violations {found} of {result.turns} turns, digest {result.digest}")
    return 1 if result.violations else 0


class _Bar:
    def __init__(self, console: Console, what: str, total: int) -> None:
        self._progress = Progress(
            TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"), console=console, transient=True,
        )  # fmt: skip
        self._total = total

    def __enter__(self) -> tuple[Progress, TaskID]:
        self._progress.start()
        return self._progress, self._progress.add_task("", total=self._total, note="")

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def _tell_coverage(out: Console, seen: Counter[str], least: int) -> None:
    for name in coverage.required():
        mark = "" if seen[name] >= least else "   too few"
        out.print(f"{seen[name]:>9,}  {name}{mark}", highlight=False)


def _tell_planted(out: Console, campaign: Campaign) -> None:
    for name, seed in sorted(campaign.caught.items()):
        told = "MISSED" if seed is None else f"caught by seed {seed}"
        out.print(f"planted: {name}: {told}", highlight=False)


def _tell_failure(out: Console, result: Result) -> None:
    invariant, what = result.violations[0]
    out.print(f"{invariant}  {what}", highlight=False, markup=False, soft_wrap=True)
    out.print(f"replay: {_command(result.schedule)} --shorten", highlight=False, soft_wrap=True)


def _command(schedule: Schedule) -> str:
    skip = f" --skip {','.join(map(str, sorted(schedule.skip)))}" if schedule.skip else ""
    return f"contraflow verify --replay {schedule.seed} --turns {schedule.turns}{skip}"
