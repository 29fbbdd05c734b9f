"""What transfer back saves on real engines, through the router:
``python -m contraflow.bench.legs [--json FILE] [--markdown FILE] [--engine sim]``.

One prefill and one decode engine with two routers before them, one of which never pulls. Four
legs take turns on them, each with conversations of its own, so that what slows the machine slows
all of them alike:

- ``cache-off``: one way, and P finds nothing in its own cache: each turn has a cache_salt of its
  own, which the router makes part of the tenant's. Neither does D find anything: it reads the
  whole prompt from P, where the reference's D reads what is new;
- ``one-way``: one way, and P has in its own cache what it has computed before;
- ``bidirectional``: P has that too, and pulls the rest of the conversation from D;
- ``own-cache``: one way, and P has computed the whole conversation before, the last answer too, so
  that only what the turn adds is left: no pull can be faster.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from contraflow.bench.limits import (
    BIDIRECTIONAL,
    CACHE_OFF,
    LEGS,
    ONE_WAY,
    OWN_CACHE,
    all_hold,
    document,
    judge,
    limits_table,
    markdown,
    problems,
    ttft_table,
)
from contraflow.bench.multiturn.endpoint import Leg
from contraflow.bench.multiturn.measured import Failure, Sample
from contraflow.bench.multiturn.shapes import Sizes, reference
from contraflow.bench.multiturn.workload import Conversation, Turn, Workload
from contraflow.cli.bench.counters import Page
from contraflow.cli.bench.run import Plan, hold, tell
from contraflow.cli.deployment import Deployment, DeploymentSpec, EngineKind
from contraflow.cli.deployment.errors import DeploymentError
from contraflow.cli.deployment.progress import ConsoleProgress, Progress
from contraflow.cli.operate.output import print_table
from contraflow.cli.session import EXIT_FAILED, run_command
from contraflow.core.fleet import Role
from contraflow.router.costs import Decides
from contraflow.runtime.clock import SystemClock
from contraflow.web import Origin

SIZES = Sizes(4, 3, (1_700, 1_700), 150, 300)
"""Prompts of 2,800 and 3,250 tokens from the second turn on."""
# The answer is long enough to be pulled, or the engines would first meet in a turn that counts.
_WARM_UP = Workload("warm-up", (Conversation(0, 300, (Turn(50, 100), Turn(50, 2))),))
_SPEC = DeploymentSpec(
    model_size="large",
    routers=2,
    decisions=(Decides.NEVER,),
    # What four legs retain and cache has to fit: a conversation that is pushed out for another
    # leg's would count against its own.
    blocks=2048,
    sim_profile="cpu-demo",
)


def legs(deployment: Deployment) -> tuple[Leg, ...]:
    """By the routers of a deployment, the first of which never pulls."""
    never, pulls = (Origin.parse(router.http) for router in deployment.routers)
    return (
        Leg(CACHE_OFF, never, fresh_salt=True),
        Leg(ONE_WAY, never),
        Leg(BIDIRECTIONAL, pulls),
        Leg(OWN_CACHE, never, primed=True),
    )


@dataclass(frozen=True, slots=True)
class Asked:
    """What to measure, and the files to write."""

    engine: EngineKind = EngineKind.VLLM
    sizes: Sizes = SIZES
    seed: int = 0
    json: Path | None = None
    markdown: Path | None = None


async def measure(asked: Asked, progress: Progress) -> int:
    """Start the deployment, measure, tell; the exit status. When cancelled it tells what it has.

    Raises DeploymentError.
    """
    workload = reference(asked.sizes, asked.seed)
    total, done = workload.turn_count * len(LEGS), 0

    def told(turn: Sample | Failure) -> None:
        nonlocal done
        done += 1
        what = f"failed: {turn.error}" if isinstance(turn, Failure) else f"{turn.ttft:.2f} s"
        which = f"conversation {turn.turn.conversation + 1}, turn {turn.turn.turn}"
        progress.done(f"{done} of {total}: {which}, {turn.leg}: {what}")

    async with Deployment(replace(_SPEC, engine=asked.engine), progress=progress) as deployment:
        prefill, decode = (deployment.engine(role) for role in (Role.PREFILL, Role.DECODE))
        pages = (Page("P", prefill.endpoint), Page("D", decode.endpoint))
        plan = Plan(
            workload, legs(deployment), pages, clients=1, warm_up=0, seed=asked.seed, tokens=True,
            json=asked.json,
        )  # fmt: skip
        progress.waiting("first contact of the engines, in either direction")
        warm = await hold(replace(plan, workload=_WARM_UP, pages=()), SystemClock())
        if warm.interrupted:
            raise asyncio.CancelledError
        if wrong := problems(warm.results):
            raise DeploymentError(f"before anything counts: {'; '.join(wrong)}")
        progress.waiting(f"{total} turns")
        held = await hold(plan, SystemClock(), told)
    judged = judge(held.results, asked.seed)
    tell(plan, held, document(held.results, judged))
    click.echo(f"\nTTFT on turns from 2 on, medians of {asked.engine.value} engines:")
    for table in (ttft_table(held.results), limits_table(judged)):
        print_table(*table)
        click.echo()
    if asked.markdown:
        asked.markdown.write_text(markdown(held.results, judged))
    for problem in problems(held.results):
        click.echo(f"FAILED: {problem}")
    if held.interrupted:
        raise asyncio.CancelledError
    return 0 if all_hold(held.results, judged) else EXIT_FAILED


_FILE = click.Path(dir_okay=False, path_type=Path)
_COUNT: Mapping[str, Any] = {"type": click.IntRange(1), "show_default": True}


@click.command()
@click.option("--engine", type=click.Choice([kind.value for kind in EngineKind]), default="vllm")
@click.option("--conversations", default=SIZES.conversations, **_COUNT)
@click.option("--turns", type=click.IntRange(2), default=SIZES.turns, show_default=True)
@click.option("--prefix", default=SIZES.prefix[0], help="Tokens, besides 500 in common.", **_COUNT)
@click.option("--output", default=SIZES.output_tokens, help="Tokens of an answer.", **_COUNT)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", type=_FILE, help="Write everything, each turn included.")
@click.option("--markdown", type=_FILE, help="Write both tables for a page.")
def main(
    engine: str, conversations: int, turns: int, prefix: int, output: int, seed: int,
    json: Path | None, markdown: Path | None,
) -> None:  # fmt: skip
    """TTFT of turns whose KV is pulled back, beside what it takes without; fails beyond limits."""
    sizes = Sizes(conversations, turns, (prefix, prefix), SIZES.input_tokens, output)
    asked = Asked(EngineKind(engine), sizes, seed, json, markdown)
    progress = ConsoleProgress(Console(stderr=True))
    sys.exit(run_command(partial(measure, asked, progress)))


if __name__ == "__main__":
    main()
