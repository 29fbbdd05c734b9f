"""Who can reach whom, and what happens to a message on its way."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")

PART: ContextVar[Part | None] = ContextVar("part", default=None)


@dataclass(slots=True)
class Weather:
    """Probabilities of what happens to one message; ``slowest``: most seconds of a delay."""

    lose: float = 0.0
    """A request or an answer; half of them silently, the other half with the connection."""
    repeat: float = 0.0
    delay: float = 0.0
    slowest: float = 0.0
    break_stream: float = 0.0
    reset: float = 0.0
    """Of an HTTP exchange."""
    drift: float = 0.0
    """The decode engine sees another prompt than the prefill engine did."""
    fail_read: float = 0.0
    slow_read: float = 0.0
    """A read of blocks takes so long that its hold may be over."""


CALM = Weather()


class Part:
    """A process. What runs in it dies with it, and is not heard any more."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.context: Context = copy_context()
        self.context.run(PART.set, self)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run something in this process."""
        context = self.context.copy()
        return asyncio.get_running_loop().create_task(work, context=context)

    async def kill(self) -> None:
        """End the process as SIGKILL does: nothing that it still tries to say is heard."""
        self.alive = False
        while self.tasks:
            for task in list(self.tasks):
                task.cancel()
            await asyncio.wait(list(self.tasks))


def own_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Let every part know the tasks that run in it, whoever starts them."""

    def make(
        loop: asyncio.AbstractEventLoop, work: Any, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context)
        part = PART.get() if context is None else context.get(PART)
        if part is not None:
            part.tasks[task] = None
            task.add_done_callback(part.tasks.pop)
            if not part.alive:
                task.cancel()
        return task

    loop.set_task_factory(make)


class Net:
    """Links between parts by name. One per world; all randomness is that of ``random``."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.calm = CALM
        """The weather between storms."""
        self.weather = CALM
        self.faults: Counter[str] = Counter()
        self.cuts: set[frozenset[str]] = set()
        self.paused: dict[str, asyncio.Event] = {}
        """Parts that stand still, and what tells that they go on."""
        self.listeners: dict[str, Any] = {}
        """Whatever serves at an address, with its part in ``.part``."""

    def reach(self, sender: str, address: str) -> Any | None:
        """What serves there; None if nobody does, or the link is cut."""
        listener = self.listeners.get(address)
        if listener is None or not listener.part.alive:
            return None
        if self.cuts and frozenset((sender, listener.part.name)) in self.cuts:
            self.count("CUT")
            return None
        return listener

    def happens(self, probability: float, kind: str) -> bool:
        """Draw, and count what has happened."""
        if probability and self.random.random() < probability:
            self.count(kind)
            return True
        return False

    def count(self, kind: str) -> None:
        """A fault has been done to somebody."""
        self.faults[kind] += 1

    async def travel(self, *ends: str) -> None:
        """The way of one message between parts: usually no time at all."""
        while self.paused and (gates := [self.paused[end] for end in ends if end in self.paused]):
            await gates[0].wait()
        weather = self.weather
        if self.happens(weather.delay, "DELAY"):
            await asyncio.sleep(self.random.random() ** 3 * weather.slowest)
