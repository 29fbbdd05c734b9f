"""Requests that no claim can be made for: decode alone, or both legs without a handle."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.router_world import SESSION, World

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    "fields",
    [{"n": 2}, {"best_of": 2}, {"use_beam_search": True}, {"prompt_logprobs": 1},
     {"prompt": ["a", "b"]}, {"prompt": [[1], [2]]}, {"echo": True, "logprobs": 1}],
)  # fmt: skip
async def test_scenario_21_odd_requests_go_to_decode_alone(world: World, fields: Any) -> None:
    world.know_session()
    answer = await world.chat(**SESSION, **fields)
    assert answer.status == 200
    assert answer.plan["reason"] == "UNSUPPORTED_REQUEST"
    assert not world.prefill.received
    assert not world.agent.acquired
    assert "kv_transfer_params" not in world.decode.last.body
    assert world.app.homes.by_key == {}


async def test_scenario_21_an_echo_is_prefilled_without_a_claim(world: World) -> None:
    world.know_session()
    answer = await world.chat(**SESSION, echo=True)
    assert answer.plan["reason"] == "UNSUPPORTED_REQUEST"
    assert world.prefill.received
    assert not world.agent.acquired
    assert not world.decode.last.ours.get("session_key")  # so that no handle is kept
    assert world.app.homes.by_key == {}
