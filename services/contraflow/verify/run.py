"""One seed from its start to the last check."""

from __future__ import annotations

import asyncio
import hashlib
import random
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from unittest import mock

from contraflow.verify import check
from contraflow.verify.chaos import Chaos
from contraflow.verify.loop import Stuck
from contraflow.verify.loop import run as run_virtually
from contraflow.verify.people import People
from contraflow.verify.talk import Conversation, Turns
from contraflow.verify.world import World

_START_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """What decides a run: nothing else does. ``skip``: numbers of faults to leave out."""

    seed: int
    turns: int
    skip: frozenset[int] = frozenset()


@dataclass(slots=True)
class Result:
    """What came of a schedule. ``digest`` is equal in every repetition."""

    schedule: Schedule
    turns: int = 0
    faulty: int = 0
    excused: int = 0
    blocks: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    """How often what happened: faults, transitions, denials, outcomes, retries."""
    violations: list[tuple[str, str]] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    seconds: float = 0.0
    digest: str = ""


def run(schedule: Schedule) -> Result:
    """Run it, in virtual time."""
    with _same_chances(schedule.seed):
        result = Result(schedule)
        try:
            run_virtually(_run(schedule, result))
        except Stuck as stuck:
            result.violations.append(("NEVER_HANGS", str(stuck)))
    told = repr((sorted(result.seen.items()), result.violations, result.seconds, result.turns))
    result.digest = hashlib.sha256(told.encode()).hexdigest()[:16]
    return result


async def _run(schedule: Schedule, result: Result) -> None:
    world = World(schedule.seed)
    result.violations = world.violations
    await world.start()
    await asyncio.sleep(_START_SECONDS)
    turns = Turns(left=schedule.turns)
    conversations = [
        Conversation(world, turns, number) for number in range(world.shape.conversations)
    ]
    chaos = Chaos(world, schedule.seed, schedule.skip)
    faults = asyncio.create_task(chaos.run())
    people = People(world)
    doings = asyncio.create_task(people.run())
    await asyncio.gather(*(one.run() for one in conversations))
    people.stop()
    await doings
    chaos.stop()
    await faults
    await check.reuse_returns(world)
    await check.nothing_is_left(world)
    result.seen = world.seen + world.net.faults
    result.turns, result.faulty, result.excused = turns.done, turns.faulty, turns.excused
    result.blocks, result.begun = turns.blocks, chaos.begun
    result.seconds = asyncio.get_running_loop().time()
    await world.close()


@contextmanager
def _same_chances(seed: int) -> Iterator[None]:
    # Ids and jitter that nobody hands in are drawn from here too.
    source = Random(f"{seed}/ids")
    state = random.getstate()
    random.seed(seed)
    with mock.patch.object(
        secrets, "token_hex", lambda size=16: f"{source.getrandbits(size * 8):0{size * 2}x}"
    ):
        try:
            yield
        finally:
            random.setstate(state)
