"""What the agent tells a real directory, and that it does so whenever the directory is there."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.support.directory_content import DirectoryContent, directory_at, free_address
from tests.support.etcd import running_etcd
from tests.support.fake_engine_link import FakeEngineLink, HealthEndpoint, engine
from tests.support.running_agent import denied, eventually, running_agent

from contraflow.core.errors import Reason
from contraflow.core.handle import Handle, State
from contraflow.runtime.address import Address

pytestmark = pytest.mark.integration


async def published(directory: DirectoryContent, *handles: Handle) -> None:
    """Return once the directory holds just the sessions of these handles."""
    expected = {handle.session_key: handle.handle_id for handle in handles}

    async def as_expected() -> bool:
        return await directory.sessions() == expected

    await eventually(as_expected, f"the directory holds {expected}")


async def registered(directory: DirectoryContent, *engine_ids: str) -> None:
    """Return once the directory knows just these engines."""

    async def as_expected() -> bool:
        return set(await directory.engines()) == set(engine_ids)

    await eventually(as_expected, f"the directory knows {engine_ids}")


async def follow_a_conversation(address: Address, etcd: Address | None) -> None:
    async with (
        HealthEndpoint().serving() as health,
        directory_at(address, etcd) as directory,
        running_agent([address]) as agent,
    ):
        decode = FakeEngineLink(engine(endpoint=health.url))
        first = decode.retain("chat")
        async with decode.attached(agent.link):
            await published(directory, first)
            known = (await directory.engines())["decode-1"]
            assert known.agent_address == "agent.test:7000"
            assert known.endpoint == health.url
            await agent.acquire("c1", "chat")
            await published(directory, first)  # a hint that its owner has to judge
            decode.end(first, State.READ)
            await published(directory)
            second, other = decode.retain("chat", tokens=64), decode.retain("other")
            await published(directory, second, other)
            third = decode.retain("chat", tokens=96)
            await published(directory, third, other)
            decode.end(other, State.EXPIRED)
            await published(directory, third)


async def test_a_conversation_is_published_turn_by_turn() -> None:
    await follow_a_conversation(free_address(), None)


async def test_a_conversation_is_published_to_etcd(tmp_path: Path) -> None:
    with running_etcd(tmp_path) as etcd:
        await follow_a_conversation(free_address(), etcd.address)


async def test_an_engine_is_registered_when_its_server_answers_and_not_before() -> None:
    address, endpoint = free_address(), HealthEndpoint()
    endpoint.healthy = False
    async with (
        endpoint.serving(),
        directory_at(address) as directory,
        running_agent([address]) as agent,
    ):
        decode = FakeEngineLink(engine(endpoint=endpoint.url))
        handle = decode.retain("chat")
        async with decode.attached(agent.link):
            await endpoint.asked.wait()
            assert not await directory.engines()
            assert (await agent.engines())[0].engine.engine_id == "decode-1"
            endpoint.healthy = True
            await published(directory, handle)


async def test_what_happens_while_the_directory_is_down_is_published_when_it_is_up() -> None:
    address = free_address()
    async with HealthEndpoint().serving() as health, running_agent([address], ttl=1.0) as agent:
        decode = FakeEngineLink(engine(endpoint=health.url))
        old, gone = decode.retain("chat"), decode.retain("gone")
        async with decode.attached(agent.link):
            async with directory_at(address) as directory:
                await published(directory, old, gone)
            decode.end(gone, State.READ)
            new, fresh = decode.retain("chat"), decode.retain("fresh")
            # In memory: it has lost all that it knew, the registration included.
            async with directory_at(address) as directory:
                await registered(directory, "decode-1")
                await published(directory, new, fresh)


async def test_a_directory_that_was_away_continues_the_registration(tmp_path: Path) -> None:
    address = free_address()
    with running_etcd(tmp_path) as etcd:
        async with HealthEndpoint().serving() as health, running_agent([address]) as agent:
            decode = FakeEngineLink(engine(endpoint=health.url))
            old, gone = decode.retain("chat"), decode.retain("gone")
            async with decode.attached(agent.link):
                async with directory_at(address, etcd.address) as directory:
                    await published(directory, old, gone)
                decode.end(gone, State.READ)
                new = decode.retain("chat")
                async with directory_at(address, etcd.address) as directory:
                    await published(directory, new)


async def test_an_engine_back_in_time_keeps_its_records_and_one_that_stays_away_loses_them() -> (
    None
):
    address = free_address()
    async with (
        HealthEndpoint().serving() as health,
        directory_at(address) as directory,
        running_agent([address], ttl=1.0) as agent,
    ):
        decode = FakeEngineLink(engine(endpoint=health.url))
        kept, ended = decode.retain("kept"), decode.retain("ended")
        async with decode.attached(agent.link):
            await published(directory, kept, ended)
        decode.end(ended, State.READ)
        async with decode.attached(agent.link):
            await published(directory, kept)
        await registered(directory)
        await published(directory)
        async with decode.attached(agent.link):
            await published(directory, kept)


async def test_scenario_08_a_restarted_engine_takes_its_place_at_once() -> None:
    address = free_address()
    async with (
        HealthEndpoint().serving() as health,
        directory_at(address) as directory,
        running_agent([address], ttl=300.0) as agent,
    ):
        old = FakeEngineLink(engine("old", endpoint=health.url))
        old.retain("chat")
        async with old.attached(agent.link):
            await registered(directory, "old")
        new = FakeEngineLink(engine("new", endpoint=health.url))
        async with new.attached(agent.link):
            await registered(directory, "new")
            await published(directory)


async def test_scenario_09_an_id_that_is_alive_elsewhere_is_never_pulled() -> None:
    address = free_address()
    async with (
        HealthEndpoint().serving() as health,
        directory_at(address) as directory,
        running_agent([address]) as one,
        running_agent([address]) as other,
    ):
        first = FakeEngineLink(engine(endpoint=health.url, boot_nonce="one"))
        second = FakeEngineLink(engine(endpoint=health.url, boot_nonce="two"))
        second.retain("chat")
        async with first.attached(one.link):
            await registered(directory, "decode-1")
            async with second.attached(other.link):

                async def refused() -> bool:
                    # Before the directory has said so: there is no handle of this session.
                    reason = await denied(other.acquire("c1", "no such chat"))
                    return reason is Reason.ENGINE_ID_REUSED

                await eventually(refused, "the agent has learned of it")
                assert await denied(other.acquire("c2", "chat")) is Reason.ENGINE_ID_REUSED


async def test_an_id_that_is_reused_is_served_once_its_first_bearer_is_gone() -> None:
    address = free_address()
    async with (
        HealthEndpoint().serving() as health,
        directory_at(address) as directory,
        running_agent([address], ttl=1.0) as one,
        running_agent([address], ttl=1.0) as other,
    ):
        first = FakeEngineLink(engine(endpoint=health.url, boot_nonce="one"))
        second = FakeEngineLink(engine(endpoint=health.url, boot_nonce="two"))
        second.retain("chat")
        await first.attach(one.link)
        await registered(directory, "decode-1")
        async with second.attached(other.link):
            await first.detach()

            async def served() -> bool:
                known = await directory.engines()
                return [found.boot_nonce for found in known.values()] == ["two"]

            await eventually(served, "the second is registered")
            assert await denied(other.acquire("c1", "chat")) is Reason.ENGINE_ID_REUSED


async def test_scenario_15_ranks_behind_one_endpoint_are_registered_each_with_its_sessions() -> (
    None
):
    address = free_address()
    async with (
        HealthEndpoint().serving() as health,
        directory_at(address) as directory,
        running_agent([address], ttl=300.0) as agent,
        AsyncExitStack() as stack,
    ):
        ranks = [
            FakeEngineLink(engine(f"rank-{rank}", endpoint=health.url, dp_rank=rank))
            for rank in range(3)
        ]
        handles = [link.retain(f"chat-{link.engine.dp_rank}") for link in ranks]
        for link in ranks:
            await stack.enter_async_context(link.attached(agent.link))
        await published(directory, *handles)
        known = await directory.engines()
        assert {name: found.dp_rank for name, found in known.items()} == {
            "rank-0": 0, "rank-1": 1, "rank-2": 2,
        }  # fmt: skip
        again = FakeEngineLink(engine("rank-1-again", endpoint=health.url, dp_rank=1))
        await ranks[1].detach()
        await stack.enter_async_context(again.attached(agent.link))
        await registered(directory, "rank-0", "rank-1-again", "rank-2")
        await published(directory, handles[0], handles[2])
