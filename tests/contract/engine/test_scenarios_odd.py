"""Scenario 21: requests that no handle may be offered to, in a conversation that goes on."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2, "temperature": 1.0},
        {"use_beam_search": True, "n": 2},
        {"prompt_logprobs": 1},
        {"echo": True},
        {"echo": True, "logprobs": 1},
        {},  # two prompts
    ],
    ids=lambda fields: "-".join(fields) or "two prompts",
)
async def test_scenario_21_an_odd_request_is_served_and_takes_and_leaves_no_handle(
    cluster: Cluster, fields: dict[str, Any]
) -> None:
    session, prompt = cluster.session(), cluster.text(160)
    first = await cluster.turn(prompt, session, tokens=100)
    prompt += first.ids + cluster.text(40)
    (handle,) = await cluster.until_handles(session, 1)
    asked: Any = prompt if fields else [prompt, cluster.text(50)]

    odd = await cluster.turn(asked, session, tokens=20, **fields)

    assert odd.status == 200, odd.body
    assert odd.report["reason"] == "UNSUPPORTED_REQUEST"
    # A turn of another conversation: what the odd one left would have been told before.
    other = cluster.session()
    await cluster.turn(cluster.text(100), other)
    await cluster.until_handles(other, 1)
    assert [one.handle_id for one in await cluster.handles(session)] == [handle.handle_id]
    again = await cluster.turn(prompt, session)
    # An echo alone is prefilled at P, which then has all that the handle holds.
    outcome = "DECLINED_SMALL" if fields == {"echo": True} else "PULLED"
    assert again.report["outcome"] == outcome, again.report
    assert again.ids == await cluster.reference(prompt)
