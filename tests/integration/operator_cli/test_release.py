"""``contraflow release``."""

from __future__ import annotations

import pytest
from tests.integration.operator_cli.world import World
from tests.support.fake_engine_link import session_key
from tests.support.running_agent import eventually

from contraflow.v1 import router_service_pb2 as pb

pytestmark = pytest.mark.integration


async def test_release_tells_what_was_freed_and_what_was_left(world: World) -> None:
    free, claimed = world.decode.retain("free"), world.decode.retain("claimed")
    await world.published(2)
    await world.agent.acquire("c1", "claimed")
    ids = [free.handle_id, claimed.handle_id, "decode-1/gone", "nobody/1"]
    document = await world.document("release", *ids)
    assert {one["handle_id"]: one["outcome"] for one in document["handles"]} == {
        free.handle_id: "freed",
        claimed.handle_id: "left: claimed",
        "decode-1/gone": "gone already",
        "nobody/1": "left: no such engine",
    }
    text = await world.told("release", free.handle_id)
    assert "gone already" in text
    assert "0 handles freed, 1 not" in text


async def test_release_of_a_session_on_all_engines(world: World) -> None:
    mine = [world.decode.retain("chat"), world.prefill.retain("chat")]
    other = world.decode.retain("other")
    await world.known(*mine, other)
    world.router.plan = pb.PlanTurnResponse(session_key=session_key("chat"))
    assert "2 handles freed" in await world.told("release", "--session", "my chat")
    await world.known(other)


async def test_release_of_an_engine_asks_first(world: World) -> None:
    for number in range(3):
        world.decode.retain(f"s{number}")
    await world.published(3)
    for answer in ("n\n", ""):
        refused = await world.failure("release", "--engine", "decode-1", answer=answer)
        assert "nothing was freed" in refused
    assert len(await world.agent.handles()) == 3
    freed = await world.told("release", "--engine", "decode-1", answer="y\n")
    assert "3 handles freed, 0 not" in freed
    await world.known()
    assert "0 handles freed" in await world.told("release", "--engine", "decode-1", "--yes")


async def test_what_can_not_be_reached_does_not_hide_what_was_freed(world: World) -> None:
    handle, lost = world.decode.retain("a"), world.prefill.retain("b")
    await world.published(2)
    await world.prefill.detach()

    async def detached() -> bool:
        return bool((await world.document("ps"))["engines"][1]["state"] == "unattached")

    await eventually(detached, "the agent has noticed")
    result = await world.run("release", handle.handle_id, lost.handle_id)
    assert result.exit_code == 1
    assert "1 handle freed, 1 not" in result.stdout
    assert "left: engine not reached" in result.stdout
    assert result.stderr.startswith("contraflow: ")
