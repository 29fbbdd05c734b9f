"""Conversations that move to another decode engine, over sim engines, agent and routers as they
are: what they leave behind is read, or let go."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import grpc
import pytest
import pytest_asyncio
from tests.fleet.conversations import Said, reference
from tests.support.wait import until_good

from contraflow.cli.deployment import MODEL_NAME, Deployment, DeploymentSpec, EngineKind
from contraflow.cli.deployment.control_plane import engines_in_view
from contraflow.router.report import parse_header
from contraflow.v1 import agent_service_pb2 as agent_pb
from contraflow.v1 import handle_pb2
from contraflow.v1 import router_service_pb2 as router_pb
from contraflow.v1.agent_service_pb2_grpc import AgentServiceStub
from contraflow.v1.router_service_pb2_grpc import RouterServiceStub

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

Message = dict[str, Any]
_NO_PROXY = [("grpc.enable_http_proxy", 0)]


class Fleet:
    """1P2D and their agent."""

    def __init__(self, deployment: Deployment, http: aiohttp.ClientSession) -> None:
        self.deployment = deployment
        self._http = http

    async def say(
        self, messages: list[Message], text: str, session: str, tokens: int = 100
    ) -> Said:
        """A turn, checked against the reference; the messages grow by it."""
        messages.append({"role": "user", "content": text})
        body: dict[str, Any] = {
            "model": MODEL_NAME, "messages": messages, "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True,
        }  # fmt: skip
        if session:
            body["session_id"] = session
        url = f"{self.deployment.routers[0].http}/v1/chat/completions"
        async with self._http.post(url, json=body) as response:
            answer = await response.json()
            assert response.status == 200, answer
            report = parse_header(response.headers["x-contraflow"])
        choice = answer["choices"][0]
        messages.append({"role": "assistant", "content": choice["message"]["content"]})
        said = Said(len(messages) // 2, answer["prompt_token_ids"], choice["token_ids"], report)
        expected = await reference(self._http, self.deployment.reference.endpoint, said)
        assert said.output_ids == expected
        return said

    async def handles(self) -> dict[str, handle_pb2.Handle]:
        """All that is retained, by turn."""
        async with self._agent() as channel:
            request = agent_pb.ListHandlesRequest()
            answer = await AgentServiceStub(channel).ListHandles(request, timeout=10)
        return {handle.turn_id: handle for handle in answer.handles}

    async def left(self, *turns: str) -> dict[str, handle_pb2.Handle]:
        """The handles, once just these turns have one."""
        return await until_good(self.handles, lambda found: set(found) == set(turns))

    @asynccontextmanager
    async def draining(self, engine_id: str) -> AsyncIterator[None]:
        """New turns decode elsewhere."""
        await self._drain(engine_id, True)
        try:
            yield
        finally:
            await self._drain(engine_id, False)

    async def end(self, session: str) -> router_pb.EndSessionResponse:
        """End a session."""
        target = self.deployment.routers[0].grpc
        async with grpc.aio.insecure_channel(target, _NO_PROXY) as channel:
            request = router_pb.EndSessionRequest(session_id=session)
            return await RouterServiceStub(channel).EndSession(request, timeout=10)

    async def release_all(self) -> None:
        """Leave nothing for the next test."""
        ids = [handle.handle_id for handle in (await self.handles()).values()]
        async with self._agent() as channel:
            request = agent_pb.ReleaseHandlesRequest(handle_ids=ids)
            await AgentServiceStub(channel).ReleaseHandles(request, timeout=10)
        await self.left()

    async def _drain(self, engine_id: str, draining: bool) -> None:
        async with self._agent() as channel:
            request = agent_pb.DrainEngineRequest(engine_id=engine_id, draining=draining)
            await AgentServiceStub(channel).DrainEngine(request, timeout=10)
        target = self.deployment.routers[0].grpc

        async def known() -> bool:
            async with grpc.aio.insecure_channel(target, _NO_PROXY) as channel:
                request = router_pb.ListViewEnginesRequest()
                view = await RouterServiceStub(channel).ListViewEngines(request, timeout=10)
            [engine] = [one for one in view.engines if one.engine_id == engine_id]
            return engine.draining is draining

        await until_good(known, bool)

    def _agent(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self.deployment.addresses.agent, _NO_PROXY)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployed() -> AsyncIterator[Fleet]:
    spec = DeploymentSpec(engine=EngineKind.SIM, decodes=2, with_reference=True)
    async with Deployment(spec) as deployment, aiohttp.ClientSession() as http:
        router = deployment.routers[0].grpc
        await until_good(lambda: engines_in_view(router), lambda ids: len(ids) == 3)
        yield Fleet(deployment, http)


@pytest_asyncio.fixture(loop_scope="module")
async def fleet(deployed: Fleet) -> AsyncIterator[Fleet]:
    yield deployed
    await deployed.release_all()


@pytest.fixture(params=[True, False], ids=["named", "by_messages"])
def session(request: pytest.FixtureRequest) -> str:
    return f"moved-{uuid.uuid4()}" if request.param else ""


def words(count: int) -> str:
    return " ".join(f"{uuid.uuid4().hex[:6]}" for _ in range(count))


async def test_scenario_28_a_moved_conversation_takes_its_handle_along(
    fleet: Fleet, session: str
) -> None:
    messages: list[Message] = []
    first = await fleet.say(messages, words(40), session)
    home = (await fleet.left(first.report["turn"]))[first.report["turn"]].engine_id
    async with fleet.draining(home):
        second = await fleet.say(messages, words(5), session)
        assert second.report["outcome"] == "PULLED"
        assert second.report["decode"] != home
        handles = await fleet.left(second.report["turn"])
    [handle] = handles.values()
    assert handle.engine_id == second.report["decode"]
    # And on it goes from where it is now.
    third = await fleet.say(messages, words(5), session)
    assert (third.report["outcome"], third.report["decode"]) == ("PULLED", handle.engine_id)
    await fleet.left(third.report["turn"])


async def test_scenario_28_one_too_short_for_a_pull_leaves_nothing_behind(
    fleet: Fleet, session: str
) -> None:
    messages: list[Message] = []
    first = await fleet.say(messages, "hi", session, tokens=8)
    home = (await fleet.left(first.report["turn"]))[first.report["turn"]].engine_id
    async with fleet.draining(home):
        second = await fleet.say(messages, "go on", session)
        # By the record, or by prefill where the record has not come yet.
        told = {second.report["reason"], second.report.get("outcome")}
        assert told & {"BELOW_THRESHOLD", "DECLINED_SMALL"}, second.report
        assert second.report["decode"] != home
        await fleet.left(second.report["turn"])


async def test_forks_on_two_engines_keep_a_handle_each(fleet: Fleet, session: str) -> None:
    messages: list[Message] = []
    first = await fleet.say(messages, words(40), session)
    home = (await fleet.left(first.report["turn"]))[first.report["turn"]].engine_id
    left, right = list(messages), list(messages)
    at_home = await fleet.say(left, words(5), session)
    async with fleet.draining(home):
        moved = await fleet.say(right, words(5), session)
    handles = await fleet.left(at_home.report["turn"], moved.report["turn"])
    assert len({handle.engine_id for handle in handles.values()}) == 2


async def test_an_ended_session_is_gone_at_both_engines(fleet: Fleet) -> None:
    session = f"ended-{uuid.uuid4()}"
    messages: list[Message] = []
    first = await fleet.say(messages, words(40), session)
    home = (await fleet.left(first.report["turn"]))[first.report["turn"]].engine_id
    branches = [list(messages), list(messages)]
    one = await fleet.say(branches[0], words(5), session)
    async with fleet.draining(home):
        two = await fleet.say(branches[1], words(5), session)
    other = await fleet.say([], words(40), f"other-{uuid.uuid4()}")
    handles = await fleet.left(*(said.report["turn"] for said in (one, two, other)))

    ended = await fleet.end(session)

    assert ended.complete
    gone = {handles[said.report["turn"]].handle_id for said in (one, two)}
    assert set(ended.released_handle_ids) == gone
    await fleet.left(other.report["turn"])
    assert list((await fleet.end(session)).released_handle_ids) == []
    third = await fleet.say(branches[0], words(5), session)
    assert third.report["decision"] == "RECOMPUTE"
