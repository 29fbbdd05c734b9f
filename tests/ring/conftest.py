"""The fleet of all tests of the ring: started once, and anew after a test that has failed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from tests.ring.fleet import Fleet, running_fleet


class Fleets:
    """One at a time."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._stack = AsyncExitStack()
        self._fleet: Fleet | None = None

    async def one(self) -> Fleet:
        """The one that runs, started if there is none."""
        if self._fleet is None:
            folder = self._folders.mktemp("ring")
            self._fleet = await self._stack.enter_async_context(running_fleet(folder))
        return self._fleet

    async def end(self) -> None:
        """Stop the one that runs."""
        self._fleet = None
        await self._stack.aclose()


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def fleets(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleets]:
    fleets = Fleets(tmp_path_factory)
    yield fleets
    await fleets.end()


@pytest_asyncio.fixture(loop_scope="session")
async def fleet(fleets: Fleets, request: pytest.FixtureRequest) -> AsyncIterator[Fleet]:
    failed = request.session.testsfailed
    fleet = await fleets.one()
    fleet.test = request.node.name
    yield fleet
    if request.session.testsfailed > failed:
        await fleets.end()
