"""What the agent does for operators: handles one by one, handles as they change, drains."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from tests.support.directory_content import DirectoryContent, directory_at, free_address
from tests.support.fake_engine_link import FakeEngineLink, HealthEndpoint, engine, session_key
from tests.support.running_agent import RunningAgent, denied, eventually, running_agent
from tests.support.wait import until

from contraflow.agent.feed import HandleFeed
from contraflow.core.errors import Reason
from contraflow.core.handle import State
from contraflow.v1 import agent_service_pb2 as pb
from contraflow.v1 import handle_pb2
from contraflow.v1.server_info_service_pb2 import GetServerInfoRequest
from contraflow.v1.server_info_service_pb2_grpc import ServerInfoServiceStub

pytestmark = pytest.mark.integration


class Watch:
    """Reads WatchHandles: (state, handle id) of each handle, "listed" for the marker."""

    def __init__(self, agent: RunningAgent, session: str = "") -> None:
        self._call = agent.stub.WatchHandles(
            pb.WatchHandlesRequest(session_key=session_key(session) if session else ""),
            timeout=30.0,
        )
        self._responses = aiter(self._call)

    async def next(self) -> tuple[str, str] | str:
        response = await anext(self._responses)
        if response.HasField("listed"):
            return "listed"
        state = handle_pb2.HandleState.Name(response.handle.state)
        return state.removeprefix("HANDLE_STATE_"), response.handle.handle_id

    def close(self) -> None:
        self._call.cancel()


@asynccontextmanager
async def watching(agent: RunningAgent, session: str = "") -> AsyncIterator[Watch]:
    watch = Watch(agent, session)
    try:
        yield watch
    finally:
        watch.close()


async def test_one_handle_is_told_until_it_ends() -> None:
    decode = FakeEngineLink(engine())
    handle = decode.retain("chat")
    async with running_agent() as agent, decode.attached(agent.link):

        async def get(handle_id: str = handle.handle_id) -> pb.GetHandleResponse:
            request = pb.GetHandleRequest(handle_id=handle_id)
            return await agent.stub.GetHandle(request, timeout=30.0)

        found = (await get()).handle
        assert (found.handle_id, found.num_tokens) == (handle.handle_id, handle.num_tokens)
        assert found.session_key == session_key("chat")
        assert await denied(get("decode-1/other")) is Reason.HANDLE_NOT_FOUND
        assert await denied(get("no-slash")) is Reason.INVALID_ARGUMENT
        decode.end(handle, State.READ)

        async def gone() -> bool:
            return not await agent.handles()

        await eventually(gone, "the end is heard")
        assert await denied(get()) is Reason.HANDLE_NOT_FOUND


async def test_a_watch_tells_what_there_is_then_every_change_and_each_last_state() -> None:
    decode = FakeEngineLink(engine())
    first = decode.retain("chat")
    async with (
        running_agent() as agent,
        decode.attached(agent.link),
        watching(agent) as watch,
    ):
        assert await watch.next() == ("RETAINED", first.handle_id)
        assert await watch.next() == "listed"
        await agent.acquire("c1", "chat")
        assert await watch.next() == ("CLAIMED", first.handle_id)
        await agent.give_back("c1")
        assert await watch.next() == ("RETAINED", first.handle_id)
        second = decode.retain("chat")
        assert await watch.next() == ("RELEASED", first.handle_id)
        assert await watch.next() == ("RETAINED", second.handle_id)
        decode.end(second, State.READ)
        assert await watch.next() == ("READ", second.handle_id)


async def test_a_watch_can_be_confined_to_a_session() -> None:
    decode = FakeEngineLink(engine())
    decode.retain("other")
    async with (
        running_agent() as agent,
        decode.attached(agent.link),
        watching(agent, "chat") as watch,
    ):
        assert await watch.next() == "listed"
        decode.retain("other")
        mine = decode.retain("chat")
        assert await watch.next() == ("RETAINED", mine.handle_id)
        call = agent.stub.WatchHandles(pb.WatchHandlesRequest(session_key="x"), timeout=30.0)
        assert await denied(anext(aiter(call))) is Reason.INVALID_ARGUMENT


async def test_scenario_08_the_handles_of_an_engine_that_was_replaced_are_lost() -> None:
    old, new = FakeEngineLink(engine("old")), FakeEngineLink(engine("new"))
    handle = old.retain("chat")
    async with running_agent() as agent:
        await old.attach(agent.link)
        async with watching(agent) as watch:
            assert await watch.next() == ("RETAINED", handle.handle_id)
            assert await watch.next() == "listed"
            await old.detach()
            async with new.attached(agent.link):
                assert await watch.next() == ("LOST", handle.handle_id)


async def test_a_reader_that_is_too_slow_is_refused_and_may_watch_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("contraflow.agent.parts.HandleFeed", lambda: HandleFeed(backlog=5))
    decode = FakeEngineLink(engine())
    async with running_agent() as agent, decode.attached(agent.link):
        call = agent.stub.WatchHandles(pb.WatchHandlesRequest(), timeout=30.0)
        responses = aiter(call)
        assert (await anext(responses)).HasField("listed")
        # More than the transport takes in without being read, each change a big one.
        tenant = "t" * 60_000
        for number in range(400):
            decode.retain(f"s{number}", tenant=tenant)

        async def all_known() -> bool:
            return (await agent.engines())[0].retained_handles == 400

        await eventually(all_known, "the agent knows all")
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            async for _ in responses:
                pass
        assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await denied(_raise(failure.value)) is Reason.OVERLOADED
        async with watching(agent) as watch:
            for _ in range(400):
                assert (await watch.next())[0] == "RETAINED"
            assert await watch.next() == "listed"


async def _raise(error: Exception) -> None:
    raise error


async def drain(agent: RunningAgent, engine_id: str, draining: bool = True) -> bool:
    request = pb.DrainEngineRequest(engine_id=engine_id, draining=draining)
    response = await agent.stub.DrainEngine(request, timeout=30.0)
    assert response.engine.engine_id == engine_id
    assert response.engine.agent_address == "agent.test:7000"
    return response.engine.draining


async def in_directory(directory: DirectoryContent, engine_id: str, draining: bool) -> None:
    async def as_expected() -> bool:
        known = (await directory.engines()).get(engine_id)
        return known is not None and known.draining is draining

    await eventually(as_expected, f"the directory says draining={draining}")


async def test_a_drain_reaches_the_directory_and_lasts_as_long_as_the_incarnation() -> None:
    address = free_address()
    async with HealthEndpoint().serving() as health, running_agent([address], ttl=1.0) as agent:
        decode = FakeEngineLink(engine("old", endpoint=health.url))
        handle = decode.retain("chat")
        async with directory_at(address) as directory:
            async with decode.attached(agent.link):
                await in_directory(directory, "old", False)
                assert await drain(agent, "old")
                assert await drain(agent, "old")
                await in_directory(directory, "old", True)

                async def published() -> bool:
                    return await directory.sessions() == {handle.session_key: handle.handle_id}

                await eventually(published, "what it retains may still be found")
                assert (await agent.acquire("c1", "chat", engine_id="old")).handle.claim_id == "c1"
            async with decode.attached(agent.link):
                assert (await agent.engines())[0].engine.draining
                await in_directory(directory, "old", True)
        async with decode.attached(agent.link), directory_at(address) as directory:
            await in_directory(directory, "old", True)  # it had lost everything
            assert not await drain(agent, "old", False)
            await in_directory(directory, "old", False)
            await drain(agent, "old")
            await decode.detach()
            async with FakeEngineLink(engine("new", endpoint=health.url)).attached(agent.link):
                await in_directory(directory, "new", False)
                assert await denied(drain(agent, "old")) is Reason.ENGINE_INCARNATION_STALE
                assert await denied(drain(agent, "never")) is Reason.ENGINE_NOT_ATTACHED
                assert await denied(drain(agent, "")) is Reason.INVALID_ARGUMENT


async def test_what_the_directory_does_not_know_of_a_drain_is_not_promised() -> None:
    address = free_address()
    async with HealthEndpoint().serving() as health, running_agent([address]) as agent:
        decode = FakeEngineLink(engine(endpoint=health.url))
        async with directory_at(address) as directory, decode.attached(agent.link):
            await in_directory(directory, "decode-1", False)
        async with decode.attached(agent.link):
            request = pb.DrainEngineRequest(engine_id="decode-1", draining=True)
            call = agent.stub.DrainEngine(request, timeout=1.0)
            assert await denied(call) is Reason.STORE_UNAVAILABLE
            assert (await agent.engines())[0].engine.draining
            async with directory_at(address) as directory:
                assert await drain(agent, "decode-1")
                assert (await directory.engines())["decode-1"].draining


async def test_a_drain_that_releases_frees_all_that_nobody_has_claimed() -> None:
    address = free_address()
    async with (
        HealthEndpoint().serving() as health,
        directory_at(address),
        running_agent([address]) as agent,
    ):
        await check_that_a_drain_releases(agent, FakeEngineLink(engine(endpoint=health.url)))


async def check_that_a_drain_releases(agent: RunningAgent, decode: FakeEngineLink) -> None:
    free, claimed = decode.retain("free"), decode.retain("claimed")
    async with decode.attached(agent.link):
        await agent.acquire("c1", "claimed")
        request = pb.DrainEngineRequest(engine_id="decode-1", draining=True, release_handles=True)
        response = await agent.stub.DrainEngine(request, timeout=30.0)
        assert response.engine.draining
        assert decode.state_of(free) is None
        assert decode.state_of(claimed) is State.CLAIMED
        late = decode.retain("late")
        await until(lambda: decode.state_of(late) is None, "it is freed as its turn ends")
        request.draining = False
        assert await denied(agent.stub.DrainEngine(request)) is Reason.INVALID_ARGUMENT


async def test_an_agent_that_starts_again_goes_on_draining() -> None:
    address = free_address()
    async with HealthEndpoint().serving() as health, directory_at(address) as directory:
        decode = FakeEngineLink(engine(endpoint=health.url))
        async with running_agent([address]) as agent:
            await decode.attach(agent.link)
            await in_directory(directory, "decode-1", False)
            await drain(agent, "decode-1")
            await in_directory(directory, "decode-1", True)
        await decode.ended.get()
        async with running_agent([address]) as agent, decode.attached(agent.link):

            async def draining() -> bool:
                return (await agent.engines())[0].engine.draining

            await eventually(draining, "the new process has learned of it")
            await in_directory(directory, "decode-1", True)


async def test_the_limits_that_the_agent_tells_are_those_it_enforces() -> None:
    decode = FakeEngineLink(engine())
    async with running_agent() as agent, decode.attached(agent.link):
        async with grpc.aio.insecure_channel(agent.address) as channel:
            info = await ServerInfoServiceStub(channel).GetServerInfo(GetServerInfoRequest())
        limits = info.limits
        assert info.component == "agent"
        assert list(info.features) == []
        ids = [f"decode-1/{number}" for number in range(limits.max_batch_items)]
        await agent.stub.ReleaseHandles(pb.ReleaseHandlesRequest(handle_ids=ids))
        call = agent.stub.ReleaseHandles(pb.ReleaseHandlesRequest(handle_ids=[*ids, "decode-1/x"]))
        assert await denied(call) is Reason.INVALID_ARGUMENT
        for number in range(limits.max_page_size + 1):
            decode.retain(f"s{number}")

        async def all_known() -> bool:
            return (await agent.engines())[0].retained_handles == limits.max_page_size + 1

        await eventually(all_known, "the agent knows all")
        request = pb.ListHandlesRequest(page_size=limits.max_page_size + 1)
        page = await agent.stub.ListHandles(request)
        assert len(page.handles) == limits.max_page_size
        too_long = pb.GetHandleRequest(handle_id="d/" + "x" * limits.max_message_bytes)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await agent.stub.GetHandle(too_long)
        assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
