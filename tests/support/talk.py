"""Conversations over a router in this process and an agent that owns handles."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from contraflow.core.fleet import Role
from contraflow.core.handle_use import DecideUse, by_size
from contraflow.router.config import RouterConfig
from tests.support.fake_engine import FakeEngine
from tests.support.owner import Owner, owned_world
from tests.support.router_world import SESSION, Answer, World, another_router, config_of

Json = dict[str, Any]
HI: Json = {"role": "user", "content": "hi"}
MORE: Json = {"role": "user", "content": "go on"}
YES: Json = {"role": "assistant", "content": "yes?"}
NO: Json = {"role": "assistant", "content": "no!"}
NEVER_PULLS = msgspec.structs.replace(config_of(), recompute_threshold_tokens=1000)


@dataclass
class Talk:
    """Conversations over one world."""

    world: World
    owner: Owner

    async def say(self, *messages: Json, named: bool = True, **fields: Any) -> str:
        """A turn that goes well; its id."""
        return (await self.answer(*messages, named=named, **fields)).plan["turn"]

    async def answer(
        self, *messages: Json, named: bool = True, reply: Json = YES, **fields: Any
    ) -> Answer:
        self.world.decode.script.message = reply
        session = SESSION if named else {}
        answer = await self.world.chat(messages=messages, **{**session, **fields})
        assert answer.status == 200
        return answer

    def publish(self) -> None:
        self.owner.publish(self.world.replica)

    async def left(self, *turns: str) -> None:
        """In the end just these turns have handles."""
        await self.world.app.close()
        assert set(self.owner.handles()) == set(turns)


@asynccontextmanager
async def elsewhere(talk: Talk, config: RouterConfig | None = None) -> AsyncIterator[Talk]:
    """The same over another router, which has seen nothing of what passed through the first."""
    async with another_router(talk.world, config) as world:
        yield Talk(world, talk.owner)


@asynccontextmanager
async def talk_of(
    config: RouterConfig | None = None, decide_use: DecideUse = by_size
) -> AsyncIterator[Talk]:
    async with owned_world(config, decide_use) as (world, owner):
        yield Talk(world, owner)


@asynccontextmanager
async def moved(talk: Talk, **fields: Any) -> AsyncIterator[FakeEngine]:
    """d1 drains, and d2 is there."""
    world = talk.world
    async with FakeEngine("d2", Role.DECODE, agent_address=world.agent_address, **fields) as second:
        talk.owner.attach(second)
        world.know(replace(world.decode.engine, draining=True), second.engine)
        yield second
