"""Cuts of the network under load: every packet is lost, and nobody is told. No turn fails."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from tests.ring.fleet import Fleet
from tests.ring.layout import DIRECTORIES, ETCDS, LIVENESS_TTL
from tests.ring.phase import phase

pytestmark = [
    pytest.mark.integration, pytest.mark.slow, pytest.mark.root,
    pytest.mark.asyncio(loop_scope="session"),
]  # fmt: skip

_SECONDS = LIVENESS_TTL * 1.5


@pytest.mark.parametrize(
    ("one", "others"),
    [
        pytest.param("router-1", ["agent-1", "agent-2"], id="a router from all agents"),
        pytest.param("router-2", ["node-1"], id="a router from a node"),
        pytest.param("directory-1", ETCDS, id="a directory from etcd"),
        pytest.param("node-1", ["node-2"], id="prefill from decode"),
        pytest.param("node-2", DIRECTORIES, id="a node from the directories"),
        pytest.param("router-2", DIRECTORIES, id="a router from the directories"),
    ],
)
async def test_a_cut_between(fleet: Fleet, one: str, others: list[str]) -> None:
    async with phase(fleet) as under_way:
        with ExitStack() as cuts:
            for other in others:
                cuts.enter_context(fleet.network.cut(one, other))
            await asyncio.sleep(_SECONDS)  # the fault itself
            await under_way.turns_go_on()


async def test_one_member_of_etcd_is_cut_off_from_the_others(fleet: Fleet) -> None:
    """The leader, which the directories still reach."""
    leader, others = await fleet.etcd_leader()
    async with phase(fleet) as under_way:
        with ExitStack() as cuts:
            for other in others:
                cuts.enter_context(fleet.network.cut(leader, other))
            await asyncio.sleep(_SECONDS)  # the fault itself
            await under_way.turns_go_on()


async def test_etcd_is_cut_off_from_everybody(fleet: Fleet) -> None:
    async with phase(fleet) as under_way:
        with ExitStack() as cuts:
            for member in ETCDS:
                for directory in DIRECTORIES:
                    cuts.enter_context(fleet.network.cut(member, directory))
            await asyncio.sleep(_SECONDS)  # the fault itself
            await under_way.turns_go_on()
