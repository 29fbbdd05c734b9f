"""What only etcd can suffer: the loss of its leader, and of its space."""

from __future__ import annotations

import pytest

from tests.ring.fleet import Fleet
from tests.ring.layout import ETCDS, QUOTA_BYTES
from tests.ring.phase import phase

pytestmark = [
    pytest.mark.integration, pytest.mark.slow, pytest.mark.root,
    pytest.mark.asyncio(loop_scope="session"),
]  # fmt: skip


async def test_the_leader_is_killed(fleet: Fleet) -> None:
    async with phase(fleet) as under_way:
        leader, _ = await fleet.etcd_leader()
        await fleet.kill(leader)
        await under_way.turns_go_on()
        assert (await fleet.etcd_leader())[0] != leader
        await fleet.start(leader)


async def test_the_leader_hands_over(fleet: Fleet) -> None:
    async with phase(fleet) as under_way:
        leader, others = await fleet.etcd_leader()
        next_one = await fleet.etcds[others[0]].status()
        await fleet.etcds[leader].hand_over(next_one.member)
        assert (await fleet.etcd_leader())[0] == others[0]
        await under_way.turns_go_on()


async def test_there_is_no_space_and_then_there_is(fleet: Fleet) -> None:
    member, *_ = fleet.etcds.values()
    async with phase(fleet) as under_way:
        try:
            await member.fill(QUOTA_BYTES)
            assert await member.alarms()
            await under_way.turns_go_on()
        finally:
            await member.forget_filler()
            for one in ETCDS:
                await fleet.etcds[one].defragment()
            await member.disarm()
        assert not await member.alarms()
