"""What goes wrong in a world, and when: spells of bad weather, deaths, cuts, losses, jumps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random

from contraflow.verify.net import CALM, Weather
from contraflow.verify.world import World

_KINDS = ("router", "agent", "directory", "prefill", "decode")
_MEAN_GAP_SECONDS = 5.0
_UNHEARD_SECONDS = 15.0  # until routers have heard of an engine that is back


class Chaos:
    """One fault every few seconds, until it is told to ``stop``; then all is well again.

    Each fault draws from its own source, named by its number: with some of them left out
    (``skip``) the others stay what they were.
    """

    def __init__(self, world: World, seed: int, skip: frozenset[int] = frozenset()) -> None:
        self.begun: list[str] = []
        """What was done, in order; those left out too."""
        self._world = world
        self._seed = seed
        self._skip = skip
        self._stopped = asyncio.Event()
        self._open: set[asyncio.Task[None]] = set()
        self._dying: set[str] = set()
        """Processes that are being stopped: killed by nobody else, or two would follow each."""
        self._faults: dict[str, tuple[float, Callable[[Random], Awaitable[None]]]] = {
            "storm": (6.0, self._storm),
            "death": (3.0, self._death),
            "cut": (2.0, self._cut),
            "store loss": (1.0, self._store_loss),
            "wall jump": (1.0, self._wall_jump),
            "pause": (1.0, self._pause),
        }

    def stop(self) -> None:
        """No new faults, and an end to those that last."""
        self._stopped.set()

    async def run(self) -> None:
        """Until stopped and everything is mended."""
        names = list(self._faults)
        weights = [weight for weight, _ in self._faults.values()]
        while True:
            random = Random(f"{self._seed}/{len(self.begun)}")
            await self._wait(random.expovariate(1 / _MEAN_GAP_SECONDS))
            if self._stopped.is_set():
                break
            [name] = random.choices(names, weights)
            self.begun.append(name)
            if len(self.begun) - 1 in self._skip:
                continue
            task = asyncio.ensure_future(self._faults[name][1](random))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
        while self._open:
            await asyncio.wait(list(self._open))
        self._world.net.weather = CALM

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopped.wait()

    async def _storm(self, random: Random) -> None:
        def some(most: float) -> float:
            return random.random() * most if random.random() < 0.5 else 0.0

        self._world.net.weather = Weather(
            lose=some(0.3), repeat=some(0.3), delay=some(0.6), slowest=random.random() * 8.0,
            break_stream=some(0.1), reset=some(0.5), drift=some(0.3), fail_read=some(0.5),
            slow_read=some(0.5),
        )  # fmt: skip
        await self._wait(random.uniform(2, 30))
        self._world.net.weather = self._world.net.calm

    async def _death(self, random: Random) -> None:
        world = self._world
        kind = random.choice(_KINDS)
        # One that holds claims by preference: they are few and short.
        names = [name for name in world.named(kind) if world.holds_claims(name)]
        name = random.choice(names or world.named(kind))
        if name in self._dying or not world.processes[name].part.alive:
            return
        self._dying.add(name)
        if decode := kind == "decode":
            world.down[name] += 1
        if kind in ("prefill", "decode") and random.random() < 0.5:
            world.net.count(f"STOP_{kind.upper()}")
            await world.shut_down(name, random.choice((0.0, 2.0, 10.0)))
        else:
            world.net.count(f"KILL_{kind.upper()}")
        await world.kill(name)
        self._dying.discard(name)
        await self._wait(random.choice((0.0, 1.0, 5.0, 30.0)))
        if name in world.shape.fixed_ids:
            # A reader that was sent to the one before could not tell that this is another.
            await asyncio.sleep(world.shape.start_by + world.shape.max_read)
        await world.launch(name)
        if decode:
            await self._wait(_UNHEARD_SECONDS)
            world.down[name] -= 1
            world.trouble()

    async def _cut(self, random: Random) -> None:
        world = self._world
        link = frozenset(random.sample(sorted(world.processes), 2))
        world.net.cuts.add(link)
        await self._wait(random.uniform(1, 40))
        world.net.cuts.discard(link)

    async def _store_loss(self, random: Random) -> None:
        store = self._world.store
        if store.down:
            return
        self._world.net.count("STORE_LOST")
        store.lose()
        await self._wait(random.uniform(1, 60))
        store.recover()

    async def _wall_jump(self, random: Random) -> None:
        name = random.choice(sorted(self._world.processes))
        self._world.net.count("WALL_JUMP")
        self._world.clock(name).wall_offset += random.uniform(-3600, 3600)

    async def _pause(self, random: Random) -> None:
        # As SIGSTOP: nothing that is sent to it or by it arrives before it goes on.
        net = self._world.net
        name = random.choice(sorted(self._world.processes))
        if name in net.paused:
            return
        net.count("PAUSE")
        gate = net.paused[name] = asyncio.Event()
        await self._wait(random.uniform(0.1, 20))
        del net.paused[name]
        gate.set()
