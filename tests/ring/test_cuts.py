"""Cuts of the network under load: every packet is lost, and nobody is told. No turn fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import product

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
    ("some", "others"),
    [
        pytest.param(["router-1"], ["agent-1", "agent-2"], id="a router from all agents"),
        pytest.param(["router-2"], ["node-1"], id="a router from a node"),
        pytest.param(["directory-1"], ETCDS, id="a directory from etcd"),
        pytest.param(DIRECTORIES, ETCDS, id="etcd from everybody"),
        pytest.param(["node-1"], ["node-2"], id="prefill from decode"),
        pytest.param(["node-2"], DIRECTORIES, id="a node from the directories"),
        pytest.param(["router-2"], DIRECTORIES, id="a router from the directories"),
    ],
)
async def test_a_cut_between(fleet: Fleet, some: list[str], others: list[str]) -> None:
    await _cut(fleet, some, others)


async def test_one_member_of_etcd_is_cut_off_from_the_others(fleet: Fleet) -> None:
    """The leader, which the directories still reach."""
    leader, others = await fleet.etcd_leader()
    await _cut(fleet, [leader], others)


async def _cut(fleet: Fleet, some: Iterable[str], others: Iterable[str]) -> None:
    async with phase(fleet) as under_way:
        with ExitStack() as cuts:
            for one, other in product(some, others):
                cuts.enter_context(fleet.network.cut(one, other))
            await asyncio.sleep(_SECONDS)  # the fault itself
            await under_way.turns_go_on()
