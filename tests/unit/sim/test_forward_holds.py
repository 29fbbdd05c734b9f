"""Decode reads what prefill still holds, or computes: however long the read takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from tests.support.sim_pair import (
    BLOCK,
    Answer,
    Pair,
    a_pair,
    a_prompt,
    expected,
    played,
    soon,
)

from contraflow.core.transfer_params import HOLD_UNTIL
from contraflow.sim import fabric
from contraflow.sim.fabric import FabricError
from contraflow.sim.profile import PROFILES, Profile
from contraflow.v1 import handle_pb2

PROMPT = a_prompt(3 * BLOCK)
LEASE, READ = 30.0, 100.0
"""Seconds for which prefill holds its blocks, and that a read of them takes."""


@pytest.fixture(autouse=True)
def slow_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROFILES, "slow-reads", Profile(0.0, 0.0, 0.0, 1024, READ, float("inf")))


@pytest.fixture
def lose_heartbeats(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on none gets through."""

    async def lost(self: object, request_ids: Sequence[str]) -> None:
        raise FabricError("nothing gets through")

    return lambda: monkeypatch.setattr(fabric._MemoryConnection, "heartbeat", lost)


async def reading(pair: Pair) -> asyncio.Task[Answer]:
    """A decode leg whose read has started."""
    leg = pair.for_decode_leg(await pair.prefilled(PROMPT))
    task = asyncio.create_task(pair.ask(pair.decode, PROMPT, leg))
    await pair.clock.wait_for_sleepers(3)  # until the lease ends, the read, and a heartbeat
    await soon(lambda: pair.decode.counters.requests_waiting == 1, "a read")
    return task


async def overwritten(pair: Pair) -> None:
    """Others use all of prefill's blocks once they are free."""
    await pair.nothing_is_held(pair.prefill)
    for start in range(1, 4):
        await pair.ask(pair.prefill, a_prompt(10 * BLOCK, start), max_tokens=1)


@pytest.mark.parametrize("skew", [0.0, -500.0, 500.0])
@pytest.mark.parametrize(("lost_after", "held"), [(0.0, LEASE), (15.0, 15.0 + LEASE * 2 / 3)])
async def test_a_read_that_ends_after_the_lease_is_computed_again(
    lose_heartbeats: Callable[[], None], lost_after: float, held: float, skew: float
) -> None:
    async with a_pair(
        prefill={"num_blocks": 12}, decode={"profile": "slow-reads"}, skew=skew
    ) as pair:
        began = pair.clock.now()
        task = await reading(pair)
        pair.clock.advance(lost_after)
        await soon(lambda: pair.prefill._transfer.deadline() == began + held, "a heartbeat")  # type: ignore[union-attr]
        lose_heartbeats()
        pair.clock.advance(held - lost_after)
        await overwritten(pair)
        answer = await played(pair.clock, asyncio.wait_for(task, None))
        assert answer.tokens == await expected(PROMPT)
        assert answer.last.num_cached_tokens == 0
        (report,) = pair.links[pair.decode.engine_id].reports
        assert report.outcome == handle_pb2.PULL_OUTCOME_FAILED
        assert report.bytes > 0
        # What it computed instead it can hand on.
        assert len(pair.handles()) == 1


async def test_heartbeats_keep_what_a_long_read_reads() -> None:
    async with a_pair(prefill={"num_blocks": 12}, decode={"profile": "slow-reads"}) as pair:
        task = await reading(pair)
        answer = await played(pair.clock, asyncio.wait_for(task, None))
        assert answer.last.num_cached_tokens == len(PROMPT)
        assert answer.tokens == await expected(PROMPT)
        assert pair.prefill.counters.nixl_expired_requests == 0
        await pair.nothing_is_held(pair.prefill)


async def test_blocks_that_nobody_says_to_hold_are_not_read() -> None:
    async with a_pair() as pair:
        leg = pair.for_decode_leg(await pair.prefilled(PROMPT))
        del leg[HOLD_UNTIL]
        answer = await pair.ask(pair.decode, PROMPT, leg)
        assert answer.last.num_cached_tokens == 0
        assert answer.tokens == await expected(PROMPT)
        await pair.nothing_is_held(pair.prefill)
