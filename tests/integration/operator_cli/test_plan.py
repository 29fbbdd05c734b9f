"""``contraflow plan``."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.operator_cli.world import World
from tests.support.fake_engine_link import session_key

from contraflow.core.errors import NoEligibleEngine, Unauthenticated
from contraflow.v1 import engine_pb2
from contraflow.v1 import router_service_pb2 as pb
from contraflow.wire.convert import duration

pytestmark = pytest.mark.integration

DECODE, PREFILL = engine_pb2.ENGINE_ROLE_DECODE, engine_pb2.ENGINE_ROLE_PREFILL


def a_plan() -> pb.PlanTurnResponse:
    return pb.PlanTurnResponse(
        decision=pb.DECISION_PULL,
        reason=pb.DECISION_REASON_HANDLE_AVAILABLE,
        prefill_engine_id="p1", decode_engine_id="d1",
        handle_id="d1/7", handle_tokens=32_000, session_key=session_key("chat"),
        candidates=[
            pb.Candidate(engine_id="d1", role=DECODE, endpoint="http://d1:1", score=1.0, home=True),
            pb.Candidate(engine_id="p1", role=PREFILL, endpoint="http://p1:1", load=3, score=-3.0),
            pb.Candidate(engine_id="p2", role=PREFILL, rejected_reason="draining"),
        ],
        estimates=[
            pb.CostEstimate(
                decision=pb.DECISION_PULL, pulled_tokens=32_000, computed_tokens=200,
                time=duration(0.0421), error=duration(0.003),
            ),
            pb.CostEstimate(
                decision=pb.DECISION_RECOMPUTE, computed_tokens=32_200, time=duration(3.2)
            ),
        ],
    )  # fmt: skip


async def test_a_plan_is_told_with_its_reason_costs_and_candidates(
    world: World, tmp_path: Path
) -> None:
    world.router.plan = a_plan()
    body = tmp_path / "body.json"
    body.write_text('{"messages": []}')
    text = await world.told(
        "plan", "--session", "chat", "--model", "demo", "--tenant", "acme",
        "--request", str(body), "--prompt-tokens", "32200",
    )  # fmt: skip
    asked = world.router.asked[-1]
    assert (asked.session_id, asked.model, asked.tenant) == ("chat", "demo", "acme")
    assert (asked.openai_json, asked.prompt_tokens) == ('{"messages": []}', 32_200)
    assert text.startswith("PULL: a decode engine holds a handle")
    for expected in (
        "32,000 tokens, d1/7", "42.1 ms ± 3.0 ms: 32,000 pulled, 200 computed",
        "3 s: 0 pulled, 32,200 computed", "draining", "home", "http://p1:1",
    ):  # fmt: skip
        assert expected in text
    verdicts = {line.split()[0]: line.split()[-1] for line in text.splitlines()[-3:]}
    assert verdicts == {"d1": "chosen", "p1": "chosen", "p2": "draining"}
    document = await world.document("plan", "--session", "chat")
    assert document["candidates"][1]["load"] == 3
    assert document["estimates"][1]["seconds"] == pytest.approx(3.2)


async def test_a_plan_without_a_prefill_leg_names_no_engine_for_it(world: World) -> None:
    world.router.plan = pb.PlanTurnResponse(
        decision=pb.DECISION_DECODE_ONLY, reason=pb.DECISION_REASON_NO_PREFILL_ENGINE,
        decode_engine_id="d1",
        candidates=[pb.Candidate(engine_id="d1", role=DECODE),
                    pb.Candidate(engine_id="p1", role=PREFILL, rejected_reason="draining")],
    )  # fmt: skip
    lines = (await world.told("plan")).splitlines()
    assert lines[0] == (
        "DECODE_ONLY: no prefill engine is eligible: decode computes the prompt (NO_PREFILL_ENGINE)"
    )
    assert lines[1].split() == ["prefill", "-"]
    verdicts = {line.split()[0]: line.split()[-1] for line in lines[-2:]}
    assert verdicts == {"d1": "chosen", "p1": "draining"}
    assert (await world.document("plan"))["decision"] == "DECODE_ONLY"


async def test_a_key_of_the_tenant_goes_along(world: World) -> None:
    world.router.plan = a_plan()
    await world.told("plan", "--session", "chat")
    assert world.router.credentials == []
    world.environment["CONTRAFLOW_API_KEY"] = "key-1"
    await world.told("plan", "--session", "chat")
    await world.told("handles", "--session", "chat")
    assert world.router.credentials == ["Bearer key-1"] * 2
    world.router.error = Unauthenticated("The API key is not valid.")
    assert "CONTRAFLOW_API_KEY" in await world.failure("plan", "--session", "chat")


async def test_a_plan_that_can_not_be_made_says_where_to_look(world: World) -> None:
    world.router.error = NoEligibleEngine("no decode engine serves the model")
    failure = await world.failure("plan", "--session", "chat")
    assert "no decode engine serves the model" in failure
    assert "`contraflow ps`" in failure
