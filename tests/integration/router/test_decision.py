"""Who decides between a pull and a recompute, as a turn shows it."""

from __future__ import annotations

import pytest
from tests.support.router_stub import router_stub
from tests.support.router_world import SESSION, World, config_of, router_world

from contraflow.core.instructions import Pull
from contraflow.v1 import router_service_pb2 as pb

pytestmark = pytest.mark.integration


async def turn(world: World, tokens: int) -> tuple[str, str]:
    world.know_session(tokens=tokens)
    answer = await world.chat(**SESSION)
    assert answer.status == 200
    return answer.plan["decision"], answer.plan["reason"]


async def test_never_claims_nothing() -> None:
    async with router_world(config_of('decision = "never"')) as world:
        assert await turn(world, 100_000) == ("RECOMPUTE", "BELOW_THRESHOLD")
        assert not world.agent.acquired


async def test_always_pulls_what_is_below_the_threshold() -> None:
    config = config_of('decision = "always"\nrecompute_threshold_tokens = 4096')
    async with router_world(config) as world:
        assert await turn(world, 10) == ("PULL", "HANDLE_AVAILABLE")
        assert world.prefill.last.ours["decision"] == "PULL"
        assert "min_pull_tokens" not in world.prefill.last.ours


async def test_a_fit_claims_what_looks_long_and_computes_what_turns_out_to_be_short() -> None:
    async with router_world(config_of('decision = "fitted"')) as world:
        assert await turn(world, 299) == ("RECOMPUTE", "BELOW_THRESHOLD")
        assert not world.agent.acquired
        # The 20,000 tokens that the record tells of would pay; the 299 that are granted do not.
        assert await turn(world, 20_000) == ("RECOMPUTE", "BELOW_THRESHOLD")
        assert len(world.agent.acquired) == 1
        assert world.prefill.last.ours["decision"] == "RECOMPUTE"


async def test_a_plan_is_explained_with_what_was_measured() -> None:
    async with router_world(config_of('decision = "fitted"')) as world, router_stub(world) as stub:
        world.know_session(tokens=20_000)
        request = pb.PlanTurnRequest(
            tenant="default", session_id=SESSION["session_id"], prompt_tokens=20_150
        )
        before = [await stub.PlanTurn(request) for _ in range(2)]
        world.prefill.script.pull = lambda _: Pull("UNSPECIFIED", computed_tokens=20_150)
        for _ in range(3):
            await world.chat(messages=[{"role": "user", "content": "hi"}])
        after = await stub.PlanTurn(request)

    assert before[0] == before[1]
    old, new = ({one.decision: one for one in plan.estimates} for plan in (before[0], after))
    # The engine of the test answers at once, whatever the length.
    recompute = pb.DECISION_RECOMPUTE
    assert new[recompute].time.ToNanoseconds() < old[recompute].time.ToNanoseconds() / 2
    assert after.decision == recompute
