"""A real directory and real agents; engines and router faked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from tests.integration.operator_cli.world import World
from tests.support.directory_content import free_address
from tests.support.fake_engine_link import FakeEngineLink, HealthEndpoint, engine
from tests.support.fake_router import FakeRouter
from tests.support.running_agent import running_agent
from tests.support.running_directory import ANY_PORT, running_directory, until_healthy

from contraflow.core.fleet import Role
from contraflow.directory.config import DirectoryConfig, LimitsConfig, LivenessConfig
from contraflow.runtime.clock import SystemClock
from contraflow.runtime.directory_client import DirectoryClient


@pytest.fixture
async def world() -> AsyncIterator[World]:
    config = DirectoryConfig(
        listen=ANY_PORT, store="memory", limits=LimitsConfig(max_page_size=2),
        liveness=LivenessConfig(min_ttl_seconds=0.5), log_level="error",
    )  # fmt: skip
    router = FakeRouter()
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        directory = await enter(running_directory(config))
        await until_healthy(directory)
        health = await enter(HealthEndpoint().serving())
        one = await enter(running_agent([directory], listen=free_address(), ttl=300.0))
        other = await enter(running_agent([directory], listen=free_address(), ttl=300.0))
        decode = FakeEngineLink(engine("decode-1", endpoint=health.url))
        prefill = FakeEngineLink(engine("prefill-1", endpoint=health.url, role=Role.PREFILL))
        await enter(decode.attached(one.link))
        await enter(prefill.attached(other.link))
        environment = {
            "CONTRAFLOW_DIRECTORY": str(directory),
            "CONTRAFLOW_ROUTER": str(await enter(router.serving())),
        }
        client = DirectoryClient([directory], SystemClock())
        stack.push_async_callback(client.close)
        world = World(environment, client, one, decode, prefill, router)
        await world.published(0)
        yield world
