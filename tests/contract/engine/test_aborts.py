"""Clients that leave: nothing stays pinned, and the conversation goes on."""

from __future__ import annotations

from enum import StrEnum

import pytest
from tests.support.cluster import Cluster, Stream

pytestmark = pytest.mark.asyncio(loop_scope="session")

POOL = 512
SMALL = 4 / POOL
"""Share of a pool that a few blocks take."""


class Moment(StrEnum):
    """When the client leaves."""

    QUEUED = "queued behind long prompts"
    PREFILL = "in prefill"
    DECODE = "in decode"
    END = "at the end"


async def leave(cluster: Cluster, moment: Moment, prompt: list[int], session: str) -> None:
    """Send a turn and leave at that moment."""
    others: list[Stream] = []
    if moment is Moment.QUEUED:
        others = [await cluster.stream(cluster.text(3000), "", 5) for _ in range(3)]
    stream = await cluster.stream(prompt, session, 60 if moment is Moment.END else 2000)
    if moment is Moment.DECODE:
        await stream.first_token()
    elif moment is Moment.END:
        await stream.end()
    stream.leave()
    for other in others:
        await other.end()
        other.leave()


@pytest.mark.parametrize("moment", [Moment.QUEUED, Moment.PREFILL, Moment.DECODE])
async def test_scenario_06_an_aborted_first_turn_leaves_nothing_behind(
    cluster: Cluster, moment: Moment
) -> None:
    session, prompt = cluster.session(), cluster.text(160)
    before = await cluster.pinned()

    await leave(cluster, moment, prompt, session)

    # Both engines are done with the request: the next one of this size finds them idle.
    again = await cluster.turn(prompt, "", tokens=30)
    assert again.ids == await cluster.reference(prompt, 30)
    assert await cluster.handles(session) == []
    await cluster.until_pinned_below(SMALL, cluster.prefill)
    await cluster.until_pinned_below(before + SMALL)


async def test_scenario_07_what_decode_rejects_holds_nothing_at_prefill(cluster: Cluster) -> None:
    """P computes a prompt for which D then finds that so long an answer does not fit. Three of
    them take 36 % of its pool, for the 30 s of a lease that nobody ends."""
    for _ in range(3):
        rejected = await cluster.turn(cluster.text(2000), cluster.session(), tokens=5000)
        assert rejected.status == 400
    await cluster.until_pinned_below(SMALL, cluster.prefill, within=15)


@pytest.mark.parametrize("moment", list(Moment), ids=str)
async def test_scenario_06_a_conversation_goes_on_after_an_aborted_turn(
    cluster: Cluster, moment: Moment
) -> None:
    """The handle of the first turn may be used up or kept: the next turn is right either way."""
    session, prompt = cluster.session(), cluster.text(160)
    first = await cluster.turn(prompt, session, tokens=100)
    prompt += first.ids + cluster.text(40)

    await leave(cluster, moment, prompt, session)
    again = await cluster.turn(prompt, session, tokens=60)

    assert again.ids == await cluster.reference(prompt, 60)
    prompt += again.ids + cluster.text(40)
    resumed = await cluster.turn(prompt, session)
    assert resumed.report["outcome"] == "PULLED", resumed.report
    assert resumed.ids == await cluster.reference(prompt)
    await cluster.until_pinned_below(SMALL, cluster.prefill)
