"""An engine with more handles than its link has room for news of, over the connector's own link."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from tests.support.connector_handles import a_handle
from tests.support.directory_content import directory_at, free_address
from tests.support.fake_engine_link import HealthEndpoint, engine, session_key
from tests.support.running_agent import RunningAgent, eventually, running_agent

from contraflow.v1 import agent_service_pb2 as pb
from contraflow_connector.link import Link
from contraflow_connector.retained import Retained

pytestmark = pytest.mark.integration

MANY = 6_000


@dataclass
class Loaded:
    """An engine that holds so many handles, with less than half of their leases left."""

    agent: RunningAgent
    retained: Retained
    epoch: int

    def step(self) -> None:
        """An engine step, and what its one worker says to it."""
        released = self.retained.step()
        for request_id, deadline in self.retained.renewals().items():
            self.retained.confirmed(request_id, deadline)
        self.retained.finished(released)

    def deadlines(self) -> list[float]:
        return [handle.deadline for handle in self.retained._table.live()]


@asynccontextmanager
async def loaded() -> AsyncIterator[Loaded]:
    retained = Retained(time.perf_counter)
    now = retained.clock()
    for number in range(MANY):
        handle = a_handle(
            f"r{number}",
            session=session_key(str(number)),
            deadline=now + 200,
            retained_at=now - 280,
        )
        retained.retain(handle, lambda _: False)
    address = free_address()
    async with (
        HealthEndpoint().serving() as health,
        directory_at(address),
        running_agent([address]) as agent,
    ):
        described = engine("e", endpoint=health.url)
        link = Link(agent.link, described, retained, lambda _: {})
        link.start()
        try:

            async def attached() -> bool:
                return bool(await agent.engines())

            await eventually(attached, "the engine is attached")
            [known] = await agent.engines()
            yield Loaded(agent, retained, known.attach_epoch)
        finally:
            link.close()


async def test_all_of_them_are_renewed_and_the_link_holds() -> None:
    async with loaded() as world:
        ordered_at = world.retained.clock()

        async def renewed() -> bool:
            world.step()
            return min(world.deadlines()) > ordered_at + 400

        await eventually(renewed, "all are renewed")
        [known] = await world.agent.engines()
        assert known.attach_epoch == world.epoch
        assert known.retained_handles == MANY


async def test_a_drain_releases_all_of_them_and_the_link_holds() -> None:
    async with loaded() as world:
        request = pb.DrainEngineRequest(engine_id="e", draining=True, release_handles=True)
        await world.agent.stub.DrainEngine(request, timeout=30.0)
        assert world.deadlines() == []
        [known] = await world.agent.engines()
        assert (known.attach_epoch, known.retained_handles) == (world.epoch, 0)
