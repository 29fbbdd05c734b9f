"""What a prompt that decode computes costs the answers that it is making meanwhile."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from contraflow.sim.api import SimRequest
from contraflow.sim.engine import SimEngine
from contraflow.sim.fabric import MemoryFabric
from contraflow.sim.options import SimOptions
from contraflow.sim.profile import PROFILES
from contraflow.verify.clock import PartClock
from contraflow.verify.loop import run

CONTEXT = 24_000
PROFILE = PROFILES["p5en-h200-efa"]


async def longest_gap(suffix: int, *, cached: bool) -> float:
    """Between two tokens of an answer, in seconds, while a turn of CONTEXT + ``suffix`` tokens is
    computed beside it."""
    clock = PartClock()
    options = SimOptions(
        role="decode", reference=True, num_blocks=4000, profile="p5en-h200-efa"
    )  # fmt: skip
    engine = SimEngine(options, clock=clock, fabric=MemoryFabric())
    await engine.start()

    async def answer(name: str, prompt: list[int], tokens: int) -> list[float]:
        request = SimRequest(name, prompt, tokens, ignore_eos=True)
        return [clock.now() async for _ in engine.generate(request)]

    history = [97 + i * 7 % 26 for i in range(CONTEXT)]
    if cached:
        await answer("before", history, 1)
    other = asyncio.ensure_future(answer("other", [98] * 64, 80))
    await asyncio.sleep(0.2)
    await answer("turn", [*history, *[100] * suffix], 2)
    instants = await other
    await engine.close()
    return max(after - before for before, after in pairwise(instants))


@pytest.mark.parametrize(
    ("suffix", "cached", "milliseconds"),
    [(1, True, 12), (150, True, 18), (450, True, 29), (1000, True, 50), (150, False, 786)],
)
def test_others_wait_while_a_suffix_is_computed(
    suffix: int, cached: bool, milliseconds: int
) -> None:
    gap = run(longest_gap(suffix, cached=cached))
    own = PROFILE.prefill(CONTEXT if cached else 0, CONTEXT + suffix)
    assert gap == pytest.approx(PROFILE.decode_step + own, rel=0.01)
    assert round(gap * 1000) == milliseconds
