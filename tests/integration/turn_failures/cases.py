"""A turn that goes on from another one, and what a test can do to its legs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.fake_engine import FakeEngine, Received, hang
from tests.support.owner import Owner, owned_world
from tests.support.router_world import SESSION, Answer, World

from contraflow.core.fleet import Role
from contraflow.core.handle import State
from contraflow.router.config import RouterConfig

PLAIN_DECODE = {"do_remote_decode": False, "do_remote_prefill": False}
PLAIN_PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}


@dataclass
class Case:
    """A world in which one turn of SESSION has left a handle, of turn ``first``."""

    world: World
    owner: Owner
    first: str

    async def next(self, **fields: Any) -> Answer:
        return await self.world.chat(**SESSION, **fields)

    async def settled(self) -> dict[str, State]:
        """The handles once everything that was to be given back has been."""
        await self.world.app.close()
        return self.owner.handles()


@asynccontextmanager
async def case_of(config: RouterConfig | None = None) -> AsyncIterator[Case]:
    async with owned_world(config) as (world, owner):
        first = await world.chat(**SESSION)
        owner.publish(world.replica)
        for engine in (world.prefill, world.decode):
            engine.received.clear()
        yield Case(world, owner, first.plan["turn"])


@asynccontextmanager
async def another(case: Case, role: Role, **fields: Any) -> AsyncIterator[FakeEngine]:
    """p2 or d2, as well known as the first."""
    world = case.world
    name = "p2" if role is Role.PREFILL else "d2"
    async with FakeEngine(name, role, agent_address=world.agent_address, **fields) as engine:
        if role is Role.DECODE:
            case.owner.attach(engine)
        else:
            case.owner.attach_reader(engine)
        world.know(engine.engine)
        yield engine


def sent(received: Received) -> dict[str, Any]:
    """Transfer parameters without our own."""
    return {key: value for key, value in received.params.items() if key != "contraflow"}


def claimed(received: Received) -> bool:
    return "claim_id" in received.ours


@contextmanager
def held(engine: FakeEngine) -> Iterator[None]:
    """Requests get no answer, and end only by being left."""
    before = engine.script.before_answer
    engine.script.before_answer = hang
    yield
    engine.script.before_answer = before


def error_of(answer: Answer) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(answer.raw)["error"]
    return error
