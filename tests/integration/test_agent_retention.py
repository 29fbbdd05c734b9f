"""Budget and renewal through a real agent over a real unix socket."""

from __future__ import annotations

import pytest
from tests.support.fake_engine_link import BLOCK_SIZE, FakeEngineLink, engine
from tests.support.running_agent import RunningAgent, eventually, running_agent
from tests.support.wait import until

from contraflow.agent.config import RetentionConfig
from contraflow.core.handle import State
from contraflow.v1 import agent_service_pb2 as pb

pytestmark = pytest.mark.integration


def counted(agent: RunningAgent, name: str, **labels: str) -> float:
    return agent.registry.get_sample_value(f"contraflow_agent_{name}", labels) or 0.0


async def test_scenario_24_the_oldest_conversations_go_when_the_budget_is_spent() -> None:
    decode = FakeEngineLink(engine())
    room = decode.engine.num_blocks // 100 * BLOCK_SIZE  # tokens of 1 %
    budget = RetentionConfig(budget_share=0.035)
    async with running_agent(retention=budget) as agent, decode.attached(agent.link):
        handles = [decode.retain(f"s{number}", tokens=room) for number in range(6)]
        newest = sorted(handle.handle_id for handle in handles[3:])

        async def within_budget() -> bool:
            return await agent.handles() == newest

        await eventually(within_budget, "three are left")
        assert [decode.state_of(handle) for handle in handles[:3]] == [None] * 3
        assert counted(agent, "handles_released_total", cause="BUDGET") == 3
        assert counted(agent, "handles_ended_total", state="RELEASED") == 3
        assert counted(agent, "retained_blocks") == 3 * decode.engine.num_blocks // 100
        grant = await agent.acquire("c1", "s5")
        assert grant.handle.handle_id == handles[5].handle_id
        assert counted(agent, "handles", state="CLAIMED") == 1
        assert counted(agent, "handles", state="RETAINED") == 2


async def test_a_conversation_that_nobody_continues_yet_is_renewed_again_and_again() -> None:
    decode = FakeEngineLink(engine())
    handle = decode.retain("chat", ttl=3.0)
    retention = RetentionConfig(ttl_seconds=3.0)
    async with running_agent(retention=retention) as agent, decode.attached(agent.link):
        first = handle.deadline

        def held_twice_as_long() -> bool:
            live = decode.table.get(handle.request_id)
            return live is not None and live.deadline > first + 3.0

        await until(held_twice_as_long, "it is renewed again and again")
        assert await agent.handles() == [handle.handle_id]
        await until(lambda: counted(agent, "renewals_total", outcome="RENEWED") >= 2, "counted")


async def test_what_an_operator_releases_is_counted_as_ordered() -> None:
    decode = FakeEngineLink(engine())
    handle = decode.retain("chat")
    async with running_agent() as agent, decode.attached(agent.link):
        request = pb.ReleaseHandlesRequest(handle_ids=[handle.handle_id])
        answer = await agent.stub.ReleaseHandles(request, timeout=30.0)
        assert list(answer.released_handle_ids) == [handle.handle_id]
        assert decode.state_of(handle) is not State.RETAINED
        assert counted(agent, "handles_released_total", cause="ORDERED") == 1
