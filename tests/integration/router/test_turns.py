"""A turn from the outside: what each leg is sent, when a handle is asked for, and why not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.fake_engine import TIP
from tests.support.router_world import HANDLE_PARAMS, KEY, PROOF, SESSION, World

from contraflow.core.instructions import Instructions, Pull
from contraflow.core.session import is_session_key
from contraflow.runtime.clock import SystemClock

pytestmark = pytest.mark.integration

PULLED = Pull("PULLED", "d1", 299, 299, 192, 107, 41, 131072, 5, 0.01, 0.02)


async def test_the_first_turn_computes_and_hands_the_blocks_to_decode(world: World) -> None:
    answer = await world.chat(**SESSION, max_tokens=7, stream=False)

    assert answer.status == 200
    assert answer.plan["decision"] == "RECOMPUTE"
    assert answer.plan["reason"] == "NO_HANDLE"
    assert (answer.plan["prefill"], answer.plan["decode"]) == ("p1", "d1")
    prefill, decode = world.prefill.last, world.decode.last
    assert prefill.body["max_tokens"] == 1
    assert prefill.body["stream"] is False
    instructions = prefill.ours
    assert prefill.params == {
        "do_remote_decode": True, "do_remote_prefill": False, "contraflow": instructions,
    }  # fmt: skip
    assert is_session_key(instructions["message_digest"])
    assert instructions == {
        "message_digest": instructions["message_digest"],
        "tenant": "default", "session_key": KEY, "turn_id": answer.plan["turn"],
        "decision": "RECOMPUTE",
    }  # fmt: skip
    assert decode.body["max_tokens"] == 7
    returned = world.prefill.own_params(prefill)
    assert returned is not None
    expected = {key: value for key, value in returned.items() if key != "_private"}
    expected["contraflow"] = {**instructions, "tip": TIP.to_json()}
    assert decode.params == expected
    assert "kv_transfer_params" not in json.loads(answer.raw)


async def test_the_second_turn_pulls_what_the_owner_granted(world: World) -> None:
    world.know_session()
    world.prefill.script.pull = lambda received: PULLED

    answer = await world.chat(**SESSION)

    assert answer.plan["decision"] == "PULL"
    assert answer.plan["reason"] == "HANDLE_AVAILABLE"
    assert answer.plan["outcome"] == "PULLED"
    tokens = [answer.plan[name] for name in ("pulled", "local", "computed", "bytes")]
    assert tokens == ["107", "192", "41", "131072"]
    sent = dict(world.prefill.last.params)
    instructions = Instructions.from_json(sent.pop("contraflow"))
    assert sent == {**HANDLE_PARAMS, "do_remote_decode": True, "do_remote_prefill": False}
    assert instructions.proof == PROOF
    assert (instructions.wants_pull, instructions.min_pull_tokens) == (True, 64)
    acquired = world.agent.acquired[0]
    assert instructions.claim_id == acquired.claim_id
    assert acquired.session_key == instructions.session_key == KEY
    assert (acquired.tenant, acquired.engine_id) == ("default", "d1")
    assert acquired.hint_handle_id == "d1/chatcmpl-turn-1"
    assert acquired.start_by.seconds == 60
    assert "proof" not in world.decode.last.ours
    assert world.decode.last.ours["decision"] == "PULL"
    await world.app.close()
    assert world.agent.returned == []


async def test_scenario_32_a_home_that_the_directory_has_not_heard_of_is_asked(
    world: World,
) -> None:
    assert (await world.chat(**SESSION)).plan["reason"] == "NO_HANDLE"
    assert (await world.chat(**SESSION)).plan["decision"] == "PULL"
    assert world.agent.acquired[0].hint_handle_id == ""


async def test_an_affinity_ends_when_the_directory_brings_the_session(world: World) -> None:
    await world.chat(**SESSION)
    assert world.app.homes.by_key == {KEY: "d1"}
    world.know_session()
    for hook in world.replica._hooks:
        hook(world.replica.sessions[KEY])
    assert world.app.homes.by_key == {}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tokens": 10}, "BELOW_THRESHOLD"),
        ({"engine_id": "gone"}, "NO_HANDLE"),
    ],
)
async def test_sessions_not_worth_a_pull(world: World, fields: Any, reason: str) -> None:
    world.know_session(**fields)
    answer = await world.chat(**SESSION)
    assert answer.plan["reason"] == reason
    assert not world.agent.acquired


async def test_a_record_is_not_judged_by_a_clock_that_another_host_wrote_it_by(
    world: World,
) -> None:
    world.know_session(expires_at=SystemClock().now() - 3600)
    answer = await world.chat(**SESSION)
    assert answer.plan["reason"] == "HANDLE_AVAILABLE"


async def test_no_session_no_pull(world: World) -> None:
    answer = await world.chat(path="/v1/completions", prompt="hi")
    assert answer.plan["reason"] == "NO_SESSION"
    assert "session_id" not in world.decode.last.body
