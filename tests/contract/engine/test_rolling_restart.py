"""2P2D: handles are pulled across all pairs, and every engine is restarted under load."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

import grpc
import pytest
import pytest_asyncio
from tests.contract.engine.conftest import SLOW_KINDS
from tests.contract.engine.test_losses import count_records
from tests.support.cluster import Cluster
from tests.support.conversation import Conversation
from tests.support.streamed import streamed
from tests.support.wait import until_good

from contraflow.cli.deployment import Deployment, DeploymentSpec, EngineHandle, EngineKind
from contraflow.core.fleet import Role
from contraflow.v1 import agent_service_pb2 as agent_pb
from contraflow.v1 import router_service_pb2 as router_pb
from contraflow.v1.agent_service_pb2_grpc import AgentServiceStub
from contraflow.v1.router_service_pb2_grpc import RouterServiceStub

pytestmark = pytest.mark.asyncio(loop_scope="session")

CONVERSATIONS = 20
TURNS, OPENING, TOKENS = 4, 100, 16
THINKING = {EngineKind.SIM: 0.1, EngineKind.VLLM: 12.0}
"""Seconds between the turns of a client: engines on two cores could not start otherwise."""
STOPPING = {EngineKind.SIM: "5", EngineKind.VLLM: "20"}
LONGEST = 300.0
"""Seconds for what must come, where five engines share two cores."""
_NO_PROXY = [("grpc.enable_http_proxy", 0)]


class Fleet:
    """The deployment and what an operator does to it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.deployment = cluster.deployment
        self.engines = cluster.deployment.addresses.engines

    def of(self, role: Role) -> list[EngineHandle]:
        """The engines of a role."""
        return [engine for engine in self.engines if engine.role is role]

    @asynccontextmanager
    async def only(self, engine: EngineHandle) -> AsyncIterator[None]:
        """All others of its role drain."""
        assert engine.role is not None
        others = [one for one in self.of(engine.role) if one != engine]
        for other in others:
            await self.drained(other, True)
        try:
            yield
        finally:
            for other in others:
                await self.drained(other, False)

    async def drained(self, engine: EngineHandle, draining: bool) -> None:
        """Every router has heard of it."""
        await self.cluster.drain(draining, engine=engine)
        for router in self.deployment.routers:
            await until_good(
                partial(self.draining, router.grpc),
                lambda endpoints: (engine.endpoint in endpoints) is draining,
            )

    async def draining(self, router: str) -> set[str]:
        """Endpoints of the engines that drain, in a router's view."""
        async with grpc.aio.insecure_channel(router, _NO_PROXY) as channel:
            request = router_pb.ListViewEnginesRequest()
            view = await RouterServiceStub(channel).ListViewEngines(request, timeout=10)
        return {one.endpoint for one in view.engines if one.draining}

    async def restart(self, engine: EngineHandle) -> None:
        """As the manual says: drained until nothing is kept there, then stopped and started."""
        drain = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "contraflow.cli.main", "drain", engine.endpoint, "--wait",
            "--directory", self.deployment.addresses.directory,
        )  # fmt: skip
        assert await asyncio.wait_for(drain.wait(), LONGEST) == 0
        await self.deployment.restart(engine.name)

    async def end(self, talk: Conversation) -> bool:
        """Ends a conversation; False if its last handle is not known yet."""
        router = self.deployment.routers[talk.router].grpc
        async with grpc.aio.insecure_channel(router, _NO_PROXY) as channel:
            request = router_pb.EndSessionRequest(session_id=talk.session)
            ended = await RouterServiceStub(channel).EndSession(request, timeout=10)
        released = {handle_id.partition("/")[0] for handle_id in ended.released_handle_ids}
        return talk.home in released or talk.home not in await self.attached()

    async def attached(self) -> set[str]:
        """Ids of the engines that are there."""
        async with self.agent() as channel:
            request = agent_pb.ListAttachedEnginesRequest()
            answer = await AgentServiceStub(channel).ListAttachedEngines(request, timeout=10)
        return {one.engine.engine_id for one in answer.engines}

    async def handles(self) -> list[str]:
        """All that is retained anywhere."""
        async with self.agent() as channel:
            answer = await AgentServiceStub(channel).ListHandles(
                agent_pb.ListHandlesRequest(), timeout=10
            )
        return [handle.handle_id for handle in answer.handles]

    def agent(self) -> grpc.aio.Channel:
        """A channel to the agent."""
        return grpc.aio.insecure_channel(self.deployment.addresses.agent, options=_NO_PROXY)

    async def nothing_is_retained(self) -> None:
        """No handle, and no record but the engines' own."""
        await until_good(self.handles, lambda found: not found, LONGEST)
        there = sum(self.deployment.is_running(one.name) for one in self.engines)
        await until_good(partial(count_records, self.cluster), lambda found: found == there)

    async def nothing_is_left(self) -> None:
        """And every pool is empty."""
        await self.nothing_is_retained()
        for engine in self.engines:
            await self.cluster.until_pinned_below(1 / DeploymentSpec.blocks, engine, LONGEST)


@dataclass
class Load:
    """Conversations that go on until they are told to end, each followed by another."""

    fleet: Fleet
    pulls: list[tuple[str, str]] = field(default_factory=list)
    """Who read from whom."""
    _over: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The first turn that fails or is wrong ends everything."""
        async with asyncio.TaskGroup() as group:
            for number in range(CONVERSATIONS):
                group.create_task(self._converse(number))
            yield
            self._over.set()

    async def until_pulled(self, pulled: Callable[[str, str], bool]) -> None:
        """Returns once somebody has read from somebody, from now on."""
        since = len(self.pulls)

        async def seen() -> bool:
            return any(pulled(*pair) for pair in self.pulls[since:])

        await until_good(seen, bool, LONGEST)

    async def _converse(self, number: int) -> None:
        while not self._over.is_set():
            talk = Conversation.with_opening(self.fleet.cluster, OPENING, router=number % 2)
            for _ in range(TURNS):
                home = talk.home
                report = await self._turn(talk, stream=number % 4 >= 2)
                await self._think()
                if report.get("outcome") == "PULLED":
                    self.pulls.append((report["prefill"], home))
            await until_good(partial(self.fleet.end, talk), bool, LONGEST)

    async def _think(self) -> None:
        with suppress(TimeoutError):
            thinking = THINKING[self.fleet.deployment.spec.engine]
            await asyncio.wait_for(self._over.wait(), thinking)

    async def _turn(self, talk: Conversation, *, stream: bool) -> dict[str, str]:
        if not stream:
            return dict((await talk.turn(TOKENS)).report)
        router = self.fleet.deployment.routers[talk.router]
        async with streamed(router, talk.prompt, talk.session, TOKENS) as (said, ended):
            await ended
        assert (said.status, said.complete) == (200, True), said
        await talk.heard(said.ids, TOKENS, said.report)
        return dict(said.report)


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=SLOW_KINDS, ids=str)
async def fleet(request: pytest.FixtureRequest) -> AsyncIterator[Fleet]:
    spec = DeploymentSpec(
        engine=request.param,
        prefills=2,
        decodes=2,
        routers=2,
        with_reference=True,
        max_model_len=1024,
        recompute_threshold_tokens=8,
        acquire_deadline=10.0,
        # On two cores the first read of an engine from another may take more than a minute.
        claim_start_by=120.0,
        claim_max_read=120.0,
        # As the units have it: what runs may end.
        engine_args=("--shutdown-timeout", STOPPING[request.param]),
        start_deadline=LONGEST,
        stop_grace=40.0,
    )
    async with Deployment(spec) as deployment:
        yield Fleet(Cluster(deployment))


async def crossed(fleet: Fleet) -> None:
    """Each prefill engine pulls from each decode engine, in conversations that go to and fro."""
    prefills = fleet.of(Role.PREFILL)
    for home in fleet.of(Role.DECODE):
        talk = Conversation.with_opening(fleet.cluster, OPENING)
        async with fleet.only(home):
            await talk.turn(TOKENS)
        home_id = await fleet.cluster.engine_id(home)
        for number, prefill in enumerate((*prefills, prefills[0])):
            talk.router = number % 2
            async with fleet.only(prefill):
                await fleet.cluster.until_planned(talk.session, talk.router)
                reply = await talk.turn(TOKENS)
            assert reply.report["outcome"] == "PULLED", reply.report
            assert reply.report["prefill"] == await fleet.cluster.engine_id(prefill)
            assert reply.report["decode"] == home_id
        await until_good(partial(fleet.end, talk), bool)


async def test_handles_cross_between_two_prefill_and_two_decode_engines(fleet: Fleet) -> None:
    await crossed(fleet)
    await fleet.nothing_is_left()


async def test_scenario_28_all_engines_are_restarted_one_after_another_under_load(
    fleet: Fleet,
) -> None:
    """No turn fails, and none is wrong."""
    load, first = Load(fleet), await fleet.attached()
    async with load.running():
        await load.until_pulled(lambda prefill, home: True)
        for engine in fleet.engines:
            await fleet.restart(engine)
            new = await fleet.cluster.engine_id(engine)
            assert new not in first
            await load.until_pulled(partial(among, new))
    assert not first & await fleet.attached()
    await crossed(fleet)
    await fleet.nothing_is_left()


async def test_an_engine_that_is_stopped_without_a_drain_fails_no_turn(fleet: Fleet) -> None:
    """The last test here, for it does not come back."""
    cluster, home = fleet.cluster, fleet.of(Role.DECODE)[0]
    talks = [Conversation.with_opening(cluster, OPENING, router=n % 2) for n in range(3)]
    async with fleet.only(home):
        for talk in talks:
            await talk.turn(TOKENS)
    for talk in talks:
        await cluster.until_planned(talk.session, talk.router)
    (other,) = {await cluster.engine_id(one) for one in fleet.of(Role.DECODE)} - {talks[0].home}

    async def says_nothing() -> bool:
        answer = await cluster.leg(home, cluster.text(20), None)
        return bool(answer.body["choices"][0]["finish_reason"] == "abort")

    stopping = asyncio.create_task(fleet.deployment.stop(home.name))
    await until_good(says_nothing, bool)
    for talk in talks[:2]:
        reply = await talk.turn(TOKENS)
        # It holds what the turn goes on from, and decodes no more.
        assert reply.report["outcome"] == "PULLED"
        assert (reply.report["retried"], talk.home) == ("DECODE_ELSEWHERE", other)
    await stopping  # what nobody has come back for is lost
    for talk in talks:
        reply = await talk.turn(TOKENS)
        expected = "RECOMPUTE" if talk is talks[2] else "PULL"
        assert (reply.report["decision"], talk.home) == (expected, other)
        await until_good(partial(fleet.end, talk), bool)
    await fleet.nothing_is_retained()


def among(engine_id: str, *pair: str) -> bool:
    """Whether an engine has read or was read from."""
    return engine_id in pair
