"""SIGSTOP and SIGCONT of each kind of part under load, shorter and longer than the TTL of the
engines' liveness. No turn fails."""

from __future__ import annotations

import asyncio

import pytest

from tests.ring.fleet import Fleet
from tests.ring.layout import LIVENESS_TTL
from tests.ring.phase import phase

pytestmark = [
    pytest.mark.integration, pytest.mark.slow, pytest.mark.root,
    pytest.mark.asyncio(loop_scope="session"),
]  # fmt: skip


@pytest.mark.parametrize(
    "part", ["etcd-1", "directory-2", "agent-2", "router-1", "prefill-2", "decode-1"]
)
async def test_a_part_stands_still(fleet: Fleet, part: str) -> None:
    async with phase(fleet) as under_way:
        for seconds in (LIVENESS_TTL / 4, LIVENESS_TTL * 1.5):
            with fleet.paused(part):
                await asyncio.sleep(seconds)  # the fault itself
            await under_way.turns_go_on()
