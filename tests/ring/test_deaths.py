"""kill -9 of each kind of part under load, and its return."""

from __future__ import annotations

import pytest

from tests.ring.fleet import Fleet
from tests.ring.layout import DIRECTORIES, ETCDS
from tests.ring.phase import phase

pytestmark = [
    pytest.mark.integration, pytest.mark.slow, pytest.mark.root,
    pytest.mark.asyncio(loop_scope="session"),
]  # fmt: skip


@pytest.mark.parametrize(
    "parts",
    [
        ["etcd-2"],
        ["directory-1"],
        ["agent-1"],
        ["router-2"],
        ["prefill-1"],
        ["decode-2"],
        ETCDS,
    ],
    ids="+".join,
)
async def test_what_is_killed_comes_back(fleet: Fleet, parts: list[str]) -> None:
    async with phase(fleet) as under_way:
        await fleet.kill(*parts)
        await under_way.turns_go_on()
        await fleet.start(*parts)


async def test_a_router_starts_while_the_directory_that_it_asks_first_stands_still(
    fleet: Fleet,
) -> None:
    async with phase(fleet) as under_way:
        with fleet.paused("directory-1"):
            await fleet.kill("router-1")
            await fleet.start("router-1")
            await under_way.until_turn("one through it", lambda turn: turn.router == "router-1")
            await under_way.turns_go_on()


async def test_both_directories_are_killed_and_come_back(fleet: Fleet) -> None:
    """For longer than what etcd holds of the engines lives without them."""
    async with phase(fleet) as under_way:
        await fleet.kill(*DIRECTORIES)
        await under_way.until_forgotten()
        await under_way.turns_go_on()
        await fleet.start(*DIRECTORIES)
