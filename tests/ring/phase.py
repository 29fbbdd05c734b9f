"""A phase of the ring: conversations, what is done to the fleet meanwhile, and what must hold
during it and after it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from contraflow.cli.deployment import MODEL_NAME, control_plane
from contraflow.router.tenancy import DEFAULT_TENANT
from contraflow.v1 import agent_service_pb2 as pb
from contraflow.v1.agent_service_pb2_grpc import AgentServiceStub
from contraflow.v1.router_service_pb2 import DECISION_PULL
from tests.ring.fleet import Fleet
from tests.ring.history import History, Turn
from tests.ring.layout import AGENTS, ENGINES, PREFIX, ROUTERS
from tests.ring.load import Clients, Past, begin, load, text
from tests.ring.watch import watched
from tests.support.wait import until, until_good

_FEW_TURNS = 15
_ANSWER = 120  # tokens: more than what prefill has itself, by enough for a pull
_REUSE_SECONDS = 40.0
_LEFT_SECONDS = 40.0


class Phase:
    """What a test may wait for while the conversations go on."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.history = History()
        self.clients = Clients(fleet, self.history)

    async def turns_go_on(self, turns: int = _FEW_TURNS) -> None:
        """Returns once so many more have ended well, and not all of them computed."""
        await self.clients.until_more(turns)

    async def until_turn(self, what: str, wanted: Callable[[Turn], object]) -> None:
        """Returns once a turn of that kind has ended: the fault is felt."""
        seen = len(self.history.turns)
        await until(lambda: any(map(wanted, self.history.turns[seen:])), what)

    async def until_forgotten(self) -> None:
        """Returns once etcd holds nothing of any engine."""
        await until_good(self.fleet.records, lambda records: not records)

    def violations(self) -> list[str]:
        """What must not be, of all that has happened so far."""
        return self.history.violations(self.fleet.harms, self.fleet.router_turns())

    def story(self) -> str:
        """For whoever looks into a failure."""
        done = map(str, self.fleet.harms[-10:])
        return "\n".join([*self.violations()[:20], *done, f"logs: {self.fleet.folder}"])

    async def check(self) -> None:
        """All that must hold, conversations ended."""
        assert not self.violations()
        await self._reuse_returns()
        await self._nothing_is_left()

    async def _reuse_returns(self) -> None:
        """On every router: for its own conversations, and for those of the other one."""
        random = Random(f"{self.fleet.test}/reuse")
        for first, second in itertools.product(ROUTERS, repeat=2):
            name = f"{self.fleet.test}/{first}/{second}"
            attempts = itertools.count(1)

            async def second_turn(first: str = first, second: str = second) -> Turn | None:
                past = begin(random, f"{name}-{next(attempts)}")  # noqa: B023 - awaited below
                turn = await self.clients.turn(past, first, _ANSWER)
                assert turn.good, str(turn)
                past.say(text(random, 40))
                if first != second and not await self._known(past, second):
                    return None
                turn = await self.clients.turn(past, second, _ANSWER)
                assert turn.good, str(turn)
                return turn

            await until_good(second_turn, lambda turn: bool(turn and turn.pulled), _REUSE_SECONDS)

    async def _known(self, past: Past, router: str) -> bool:
        """Whether a router comes to know of a conversation."""

        async def plan() -> Any:
            return await control_plane.plan_turn(
                self.fleet.targets[router], DEFAULT_TENANT, past.session, MODEL_NAME
            )

        try:
            await until_good(plan, lambda plan: plan.decision == DECISION_PULL, 3.0)
        except AssertionError:
            return False
        return True

    async def _nothing_is_left(self) -> None:
        """Once what is retained is released, and what is claimed has run out: no handle, no
        pinned block, no request, no record but those of the engines."""

        async def left() -> dict[str, Any]:
            handles = {agent: await self._release(agent) for agent in AGENTS}
            records = await self.fleet.records()
            engines = await self.fleet.engine_ids()
            expected = {f"{PREFIX}/engines/{one}" for one in engines.values()}
            pinned = {one: await self._used(one) for one in ENGINES}
            found: dict[str, Any] = {
                "handles": {one: ids for one, ids in handles.items() if ids},
                "blocks": {one: share for one, share in pinned.items() if share},
                "records": {key: key in records for key in records ^ expected},
            }
            return {what: which for what, which in found.items() if which}

        await until_good(left, lambda what: not what, _LEFT_SECONDS)

    async def _used(self, engine: str) -> float:
        return (await self.fleet.metrics(engine))["vllm:kv_cache_usage_perc"]

    async def _release(self, agent: str) -> list[str]:
        async with self.fleet.dialled(agent) as channel:
            stub = AgentServiceStub(channel)
            listed = await stub.ListHandles(pb.ListHandlesRequest(), timeout=5)
            ids = [handle.handle_id for handle in listed.handles]
            await stub.ReleaseHandles(pb.ReleaseHandlesRequest(handle_ids=ids), timeout=5)
        return ids


@asynccontextmanager
async def phase(fleet: Fleet) -> AsyncIterator[Phase]:
    """Conversations are under way; faults that are made in it shall be over at its end. Then
    everything comes back, and what has happened is checked."""
    phase = Phase(fleet)
    async with watched(fleet, phase.history):
        try:
            async with load(phase.clients, fleet.test):
                await phase.turns_go_on()
                yield phase
                await fleet.until_settled()
                await phase.turns_go_on()
            await phase.check()
        except AssertionError as error:
            error.add_note(phase.story())
            raise
