"""Scenario 3: turns around the end of a lease, between engines whose clocks have nothing in
common. Blocks that were freed are overwritten at once, so that a late read gives other tokens."""

from __future__ import annotations

import pytest
from tests.support.sim_pair import BLOCK, Pair, a_pair, a_prompt, expected, played, soon

from contraflow.core.errors import ContraflowError, HandleNotFound, LeaseTooShort

PROMPT = a_prompt(3 * BLOCK)
DAY = 86_400.0
SKEWS = [-10.0, 0.0, 10.0, -3 * DAY, 400 * DAY]
POOL = 24  # blocks

pytestmark = pytest.mark.parametrize("skew", SKEWS)


async def first_turn(pair: Pair) -> list[int]:
    """Leaves a handle; returns the history of the next turn, which P must compute or pull."""
    first = await pair.turn(PROMPT, max_tokens=40)
    pair.prefill.clear_prefix_cache()
    return [*PROMPT, *first.tokens, *a_prompt(9)]


async def overwrite(pair: Pair) -> None:
    """Let others write into every block of D that is free."""
    free = pair.decode.pool.num_free
    await pair.ask(pair.decode, a_prompt(free * BLOCK - 20, 11), max_tokens=10)


@pytest.mark.parametrize("left", [10.0, 6.0, 4.0, -1.0])
async def test_scenario_03_a_turn_that_comes_at_the_end_of_the_lease(
    skew: float, left: float
) -> None:
    """A claim needs 5 + 2 seconds of it."""
    async with a_pair(skew=skew, retention_ttl=100.0, decode={"num_blocks": POOL}) as pair:
        history = await first_turn(pair)
        pair.clock.advance(100.0 - left)
        if left < 0:
            await pair.nothing_is_held(pair.decode)
        denial: ContraflowError | None = None
        params = None
        try:
            params = pair.for_pull(pair.claim(start_by=5.0, max_read=2.0))
        except ContraflowError as error:
            denial = error
        await overwrite(pair)

        answer = await pair.prefilled(history, params)

        assert type(denial) is {10.0: type(None), -1.0: HandleNotFound}.get(left, LeaseTooShort)
        assert answer.pull["outcome"] == ("UNSPECIFIED" if denial else "PULLED")
        assert answer.tokens == await expected(history, 1)


@pytest.mark.parametrize("waited", [0.0, 14.0, 16.0, 19.9, 20.0, 26.0, 29.0, 31.0, 90.0])
async def test_scenario_03_a_read_that_starts_around_the_end_of_its_claim(
    skew: float, waited: float
) -> None:
    """The claim says: start within 20 seconds, and end 10 seconds later."""
    async with a_pair(skew=skew, decode={"num_blocks": POOL}) as pair:
        history = await first_turn(pair)
        params = pair.for_pull(pair.claim(start_by=20.0, max_read=10.0))
        pair.clock.advance(waited)
        if waited >= 30.0:
            await pair.nothing_is_held(pair.decode)
        await overwrite(pair)

        answer = await pair.prefilled(history, params)

        assert answer.pull["outcome"] == ("PULLED" if waited < 20.0 else "FAILED")
        assert answer.tokens == await expected(history, 1)
        pair.clock.advance(30.0)
        await pair.nothing_is_held(pair.decode)


async def test_scenario_03_a_read_in_flight_when_the_hold_ends(skew: float) -> None:
    """The clock stands at the last instant at which the read may start, and a read takes time."""
    async with a_pair(skew=skew, profile="cpu-demo", decode={"num_blocks": POOL}) as pair:
        first = await played(pair.clock, pair.turn(PROMPT, max_tokens=40))
        pair.prefill.clear_prefix_cache()
        history = [*PROMPT, *first.tokens, *a_prompt(9)]
        params = pair.for_pull(pair.claim(start_by=20.0, max_read=0.0001))
        pair.clock.advance(19.9999)

        answer = await played(pair.clock, pair.prefilled(history, params))

        assert answer.pull["bytes"] > 0
        assert answer.pull["outcome"] == "FAILED"
        assert answer.tokens == await expected(history, 1)
        await soon(lambda: not pair.handles(), "the owner counts it as ended")
