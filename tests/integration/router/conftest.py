"""A router between fake engines and a fake agent, on real sockets, and its gRPC side."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
from tests.support.router_stub import router_stub
from tests.support.router_world import World, router_world

if TYPE_CHECKING:
    from contraflow.v1.router_service_pb2_grpc import RouterServiceAsyncStub


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with router_world() as world:
        yield world


@pytest.fixture
async def stub(world: World) -> AsyncIterator[RouterServiceAsyncStub]:
    async with router_stub(world) as stub:
        yield stub
