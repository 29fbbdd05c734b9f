"""Traits, affinities, load, the response header, routes to plans."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.support.clock import ManualClock

from contraflow.core.fleet import Engine, Role
from contraflow.core.instructions import Pull
from contraflow.core.plan import Decision, Plan, PlanReason, Policy, TurnRequest
from contraflow.router.affinity import Homes, Load, Produced, Replies
from contraflow.router.planning import Planner, missing_roles, served_models
from contraflow.router.plans import plan_to_proto
from contraflow.router.relay import client_headers
from contraflow.router.report import TurnReport, parse_header
from contraflow.router.turn_body import Traits, traits_of
from contraflow.runtime.fleet_replica import FleetReplica
from contraflow.v1 import router_service_pb2 as pb
from contraflow.web import ApiError, parse_body


def traits(**values: Any) -> Traits:
    return traits_of(parse_body(msgspec.json.encode(values)))


@pytest.mark.parametrize(
    "values",
    [{}, {"n": 1}, {"n": None}, {"best_of": 1}, {"use_beam_search": False}, {"echo": False},
     {"prompt": "text [1]"}, {"prompt": [1, 2]}, {"prompt": []}, {"prompt_logprobs": None},
     {"logprobs": True, "top_logprobs": 5}, {"messages": [["n", 2]]}],
)  # fmt: skip
def test_plain_requests(values: Any) -> None:
    assert traits(**values) == Traits("", claimable=True, two_legged=True)


@pytest.mark.parametrize(
    "values",
    [{"n": 2}, {"n": "1"}, {"n": 1.0}, {"best_of": 3}, {"use_beam_search": True},
     {"prompt": ["a"]}, {"prompt": [[1]]}, {"prompt_logprobs": 0}, {"prompt_logprobs": -1},
     {"prompt_embeds": "AAAA"}, {"echo": True, "logprobs": 1}, {"echo": 1, "top_logprobs": 1}],
)  # fmt: skip
def test_requests_for_decode_alone(values: Any) -> None:
    assert traits(**values) == Traits("", claimable=False, two_legged=False)


def test_white_space_before_a_list_of_prompts_is_seen_through() -> None:
    body = parse_body(b'{"prompt": [ \n "a"]}')
    assert not traits_of(body).two_legged


def test_an_echo_is_not_claimed_for() -> None:
    assert traits(echo=True) == Traits("", claimable=False, two_legged=True)


def test_homes_keep_the_newest() -> None:
    homes = Homes(2)
    for key in ("a", "b", "a", "c"):
        homes.remember(key, f"engine-{key}")
    assert homes.by_key == {"a": "engine-a", "c": "engine-c"}
    homes.forget("a")
    homes.forget("unknown")
    assert homes.by_key == {"c": "engine-c"}


def test_replies_tell_of_the_newest_turn_that_is_not_spent() -> None:
    replies = Replies(2)
    assert replies.find("k", "r") is None
    replies.remember("k", "r", Produced("t1", "d1"))
    replies.remember("k", "r", Produced("t2", "d2"))
    assert replies.find("k", "r") == Produced("t2", "d2")
    replies.spend("k", "r")
    assert replies.find("k", "r") == Produced("t1", "d1")
    replies.spend("k", "r")
    assert replies.find("k", "r") == Produced("t2", "d2", spent=True)
    replies.spend("k", "other")
    assert replies.find("other", "r") is replies.find("k", "other") is None


def test_replies_keep_the_newest() -> None:
    replies = Replies(2)
    for key in ("a", "b", "a", "c"):
        replies.remember(key, "r", Produced(f"turn-{key}", "d"))
    assert [key for key in "abc" if replies.find(key, "r")] == ["a", "c"]
    for turn in range(9):
        replies.remember("c", "r", Produced(f"turn-{turn}", "d"))
    assert replies.find("c", "r") == Produced("turn-8", "d")


def test_load_counts_legs_while_they_run() -> None:
    load = Load()
    with load.leg("e"), load.leg("e"):
        assert load.by_engine == {"e": 2}
    with pytest.raises(RuntimeError), load.leg("e"):
        raise RuntimeError
    assert load.by_engine == {}


def test_the_header_can_be_parsed() -> None:
    report = TurnReport("t1", "r1", decision="PULL", reason="HANDLE_AVAILABLE", prefill="p; x=1\r")
    report.offered_tokens = 300
    report.pull = Pull(
        "PULLED", offered_tokens=300, proven_tokens=299, pulled_tokens=107, local_tokens=192,
        computed_tokens=41, bytes=9,
    )  # fmt: skip
    name, value = report.header()
    assert name == b"x-contraflow"
    assert parse_header(value.decode()) == {
        "turn": "t1", "decision": "PULL", "reason": "HANDLE_AVAILABLE", "offered": "300",
        "discarded": "1", "pulled": "107",
        "local": "192", "computed": "41", "outcome": "PULLED", "bytes": "9",
        "prefill": "p__x_1_", "pull_s": "0.0000",
    }  # fmt: skip


def test_the_header_tells_what_prefill_and_its_pull_took() -> None:
    report = TurnReport("t1", "r1", seconds={"prefill": 0.61234, "total": 9.0})
    assert parse_header(report.header()[1].decode()) == {"turn": "t1", "prefill_s": "0.6123"}
    report.pull = Pull("PULLED", pulled_tokens=107, wall_seconds=0.0712)
    told = parse_header(report.header()[1].decode())
    assert (told["prefill_s"], told["pull_s"]) == ("0.6123", "0.0712")
    report.pull = Pull("DECLINED_UNWANTED", wall_seconds=0.0712)
    assert "pull_s" not in parse_header(report.header()[1].decode())


def test_headers_for_clients() -> None:
    headers = [
        (b"content-type", b"text/event-stream"), (b"content-length", b"4"), (b"server", b"u"),
        (b"connection", b"keep-alive, x-hop"), (b"x-hop", b"1"), (b"transfer-encoding", b"chunked"),
        (b"x-contraflow", b"engine's"), (b"x-kept", b"1"),
    ]  # fmt: skip
    assert client_headers(headers, [(b"x-contraflow", b"ours")]) == [
        (b"content-type", b"text/event-stream"), (b"x-kept", b"1"), (b"x-contraflow", b"ours"),
    ]  # fmt: skip


def engine(engine_id: str, role: Role, **fields: Any) -> Engine:
    fields = {"served_models": (f"m-{engine_id}",), **fields}
    return Engine(engine_id, "n", role, "http://127.0.0.1:1", **fields)


def test_models_and_roles_of_a_view() -> None:
    engines = [engine("p", Role.PREFILL, model="org/p"), engine("d", Role.DECODE, draining=True)]
    assert served_models(engines) == {"m-d": "", "m-p": "org/p"}
    assert missing_roles(engines) == ["decode"]


def test_who_is_told_what_when_nothing_can_be_planned() -> None:
    replica = FleetReplica(ManualClock())
    planner = Planner(replica, Homes(1), Replies(1), Load(), Policy())
    with pytest.raises(ApiError) as caught:
        planner.plan_for_client(TurnRequest("m-d"))
    assert caught.value.status == 503  # an empty view knows nothing of models
    replica.engines["p"] = engine("p", Role.PREFILL)
    for model, status in (("m-p", 503), ("other", 404)):
        with pytest.raises(ApiError) as caught:
            planner.plan_for_client(TurnRequest(model))
        assert caught.value.status == status
    assert planner.default_model() == "m-p"


async def test_a_turn_waits_for_the_first_view_of_a_router_but_not_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = FleetReplica(ManualClock())
    planner = Planner(replica, Homes(1), Replies(1), Load(), Policy())
    turn = asyncio.create_task(planner.heard())
    await asyncio.sleep(0)
    assert not turn.done()
    replica.synced.set()
    await turn
    replica.synced.clear()
    monkeypatch.setattr("contraflow.router.planning.FIRST_VIEW_SECONDS", 0.0)
    await planner.heard()


@pytest.mark.parametrize("decision", Decision)
@pytest.mark.parametrize("reason", PlanReason)
def test_every_plan_can_travel(decision: Decision, reason: PlanReason) -> None:
    plan = Plan(engine("d", Role.DECODE), engine("p", Role.PREFILL), decision, reason)
    message = plan_to_proto(plan, Load())
    assert pb.Decision.Name(message.decision) == f"DECISION_{decision}"
    assert pb.DecisionReason.Name(message.reason) == f"DECISION_REASON_{reason}"
