"""One event loop and one world for all examples of a module: thousands take seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

from tests.support.complaints import no_complaints

WorldT = TypeVar("WorldT")
T = TypeVar("T")


class Stage(Generic[WorldT]):
    """A world, and the loop that it lives on."""

    def __init__(self, runner: asyncio.Runner, world: WorldT) -> None:
        self._runner = runner
        self.world = world

    def run(self, example: Coroutine[Any, Any, T], allowed: tuple[str, ...] = ()) -> T:
        """Run an example; AssertionError if it makes anything complain."""
        with no_complaints(self._runner.get_loop(), allowed):
            return self._runner.run(example)


def staged(context: AbstractAsyncContextManager[WorldT]) -> Iterator[Stage[WorldT]]:
    """For fixtures of a module."""
    with asyncio.Runner() as runner:
        world = runner.run(_entered(context))
        try:
            yield Stage(runner, world)
        finally:
            runner.run(_left(context))


async def _entered(context: AbstractAsyncContextManager[WorldT]) -> WorldT:
    return await context.__aenter__()


async def _left(context: AbstractAsyncContextManager[WorldT]) -> None:
    await context.__aexit__(None, None, None)
