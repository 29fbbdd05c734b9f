"""``contraflow ps``."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.integration.operator_cli.world import World
from tests.support.directory_content import free_address
from tests.support.fake_engine_link import engine
from tests.support.running_agent import eventually

from contraflow.v1 import handle_pb2
from contraflow.v1 import router_service_pb2 as pb
from contraflow.wire.convert import duration

pytestmark = pytest.mark.integration


async def test_ps_shows_what_directory_agents_and_router_say(world: World) -> None:
    world.decode.retain("a")
    world.decode.report(handle_pb2.PULL_OUTCOME_PULLED, pulled_tokens=64)
    await world.published(1)
    world.router.view = pb.ListViewEnginesResponse(revision=7, age=duration(0.4))
    unreachable = engine("lost-1", endpoint="http://127.0.0.1:10")
    await world.client.register(replace(unreachable, agent_address=str(free_address())), ttl=60.0)
    await world.prefill.detach()

    async def as_expected() -> bool:
        engines = (await world.document("ps"))["engines"]
        states = {one["engine_id"]: one["state"] for one in engines}
        expected = {"decode-1": "serving", "prefill-1": "unattached", "lost-1": "agent unreachable"}
        return states == expected

    await eventually(as_expected, "each engine is in its state")
    document = await world.document("ps")
    first = document["engines"][0]
    assert first["engine_id"] == "decode-1"
    assert (first["role"], first["retained_handles"]) == ("decode", 1)
    assert first["pulls"] == {"PULLED": 1}
    assert document["engines"][1]["retained_handles"] is None
    assert document["view"]["revision"] == 7
    text = await world.told("ps")
    assert all(one in text for one in ("decode-1", "prefill-1", "agent unreachable", "1 pulled"))
    assert "heard 0.4 s ago" in text


async def test_ps_does_without_a_router(world: World) -> None:
    nobody = str(free_address())
    assert "no answer from the router" in await world.told("ps", "--router", nobody)
    assert (await world.document("ps", "--router", nobody))["view"] is None
