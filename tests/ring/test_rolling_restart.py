"""Every part is stopped and started again, one after the other, as in an upgrade: no turn fails,
and no client notices."""

from __future__ import annotations

import pytest

from tests.ring.fleet import Fleet
from tests.ring.layout import AGENTS, DIRECTORIES, ENGINES, ETCDS, ROUTERS
from tests.ring.phase import phase

pytestmark = [
    pytest.mark.integration, pytest.mark.slow, pytest.mark.root,
    pytest.mark.asyncio(loop_scope="session"),
]  # fmt: skip


async def test_everything_is_restarted_under_load(fleet: Fleet) -> None:
    before = await fleet.engine_ids()
    async with phase(fleet) as under_way:
        for part in (*ETCDS, *DIRECTORIES, *AGENTS, *ROUTERS):
            await fleet.stop(part)
            await fleet.start(part)
            await fleet.until_settled()
        for engine in ENGINES:
            await fleet.drain(engine)
            await under_way.clients.until_turned_over()
            await fleet.stop(engine)
            await fleet.start(engine)
            await fleet.until_settled()
    after = await fleet.engine_ids()
    assert before.keys() == after.keys()
    assert not set(before.values()) & set(after.values())
