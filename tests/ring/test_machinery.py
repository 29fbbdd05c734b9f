"""One fault in every run of CI, so that the ring itself is known to work."""

from __future__ import annotations

import pytest

from tests.ring.fleet import Fleet
from tests.ring.phase import phase

_IN_VAIN = ("TIMEOUT", "UNREACHABLE")
pytestmark = [pytest.mark.integration, pytest.mark.root, pytest.mark.asyncio(loop_scope="session")]


async def test_a_router_is_cut_off_from_an_agent(fleet: Fleet) -> None:
    async with phase(fleet) as under_way:
        with fleet.network.cut("router-1", "agent-1"):
            await under_way.until_turn("a claim in vain", lambda turn: turn.denied in _IN_VAIN)
            await under_way.turns_go_on()
