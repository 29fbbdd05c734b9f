"""``contraflow sessions``."""

from __future__ import annotations

import pytest
from tests.integration.operator_cli.world import World
from tests.support.fake_engine_link import session_key

pytestmark = pytest.mark.integration


async def test_sessions_come_newest_lease_first_from_all_pages(world: World) -> None:
    for number, ttl in enumerate((260.0, 400.0, 280.0, 300.0, 250.0)):
        world.decode.retain(f"s{number}", ttl=ttl, tokens=1000 + number)
    await world.published(5)
    found = (await world.document("sessions"))["sessions"]
    assert [one["session_key"] for one in found] == [session_key(f"s{n}") for n in (1, 3, 2, 0, 4)]
    assert found[0]["num_tokens"] == 1001
    assert 390 < found[0]["ttl_seconds"] <= 400
    text = await world.told("sessions")
    assert "1,001" in text
    assert "5 sessions" in text


async def test_sessions_of_one_engine(world: World) -> None:
    world.decode.retain("a")
    await world.published(1)
    assert "1 session " in await world.told("sessions", "--engine", "deco")
    assert (await world.document("sessions", "--engine", "prefill-1")) == {"sessions": []}
    assert "`contraflow ps`" in await world.failure("sessions", "--engine", "nobody")
    both = await world.failure("sessions", "--engine", world.decode.engine.endpoint)
    assert "decode-1, prefill-1" in both
