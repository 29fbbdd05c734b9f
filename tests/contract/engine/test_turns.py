"""Turns: what is pulled, and that the tokens are a single engine's."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from tests.support.cluster import Cluster

from contraflow.cli.demo.run import run_conversation

pytestmark = pytest.mark.asyncio(loop_scope="session")

BLOCK = 32


async def test_the_demos_conversation_pulls_and_equals_the_reference(cluster: Cluster) -> None:
    outcome = await run_conversation(cluster.deployment)

    assert outcome.problems() == []
    assert outcome.identical == len(outcome.turns) == 5
    routers = [turn.router for turn in outcome.turns]
    taken_over = routers.index("router-2")
    assert taken_over > 0
    for turn in outcome.turns[1:]:
        assert turn.plan == "PULL HANDLE_AVAILABLE"
        assert turn.measured.pulled > 0
        assert turn.measured.bytes > 0


async def test_the_second_turn_pulls_the_response_and_the_engine_counts_it(
    cluster: Cluster,
) -> None:
    session = cluster.session()
    first_prompt = cluster.text(200)
    before = await cluster.counted()

    first = await cluster.turn(first_prompt, session, tokens=100)
    second_prompt = first_prompt + first.ids + cluster.text(40)
    second = await cluster.turn(second_prompt, session)

    assert first.report["reason"] == "NO_HANDLE"
    assert second.report["decision"] == "PULL"
    assert second.report["outcome"] == "PULLED"
    # 200 prompt tokens are in P's cache up to the last whole block; the last of the 100
    # response tokens has no KV yet.
    assert second.tokens("local") == 200 // BLOCK * BLOCK
    assert second.tokens("pulled") == 299 - 200 // BLOCK * BLOCK
    assert second.tokens("computed") == 41
    counted = await cluster.counted_since(before, len(first_prompt) + len(second_prompt))
    assert counted.pulled == second.tokens("pulled")
    assert counted.bytes == second.tokens("bytes") > 0
    assert first.ids == await cluster.reference(first_prompt, 100)
    assert second.ids == await cluster.reference(second_prompt)


@pytest.mark.parametrize("with_kv", [9 * BLOCK - 1, 9 * BLOCK, 9 * BLOCK + 1])
async def test_scenario_16_handles_that_end_around_a_block_boundary(
    cluster: Cluster, with_kv: int
) -> None:
    session = cluster.session()
    prompt = cluster.text(200)
    first = await cluster.turn(prompt, session, tokens=with_kv - len(prompt) + 1)
    prompt += first.ids + cluster.text(50)

    second = await cluster.turn(prompt, session)

    assert second.tokens("local") + second.tokens("pulled") == with_kv
    assert second.ids == await cluster.reference(prompt)


@pytest.mark.parametrize(
    ("warm", "local", "pulled"),
    [(64, 64, 235), (200, 192, 107), (299, 288, 0), (339, 320, 0)],
    ids=["much shorter", "shorter", "equal", "longer"],
)
async def test_scenario_05_what_p_has_itself_is_not_pulled(
    cluster: Cluster, warm: int, local: int, pulled: int
) -> None:
    """The handle has 299 tokens; P's own cache holds the whole blocks of ``warm`` of them."""
    session, salt = cluster.session(), f"salt-{uuid.uuid4()}"
    start = cluster.text(64)
    first = await cluster.turn(start, session, tokens=236, cache_salt=salt)
    prompt = start + first.ids + cluster.text(60)
    await cluster.turn(prompt[:warm], "", tokens=1, cache_salt=salt)

    second = await cluster.turn(prompt, session, cache_salt=salt)

    assert second.tokens("local") == local
    assert second.tokens("pulled") == pulled
    assert second.report["outcome"] == ("PULLED" if pulled else "DECLINED_SMALL")
    assert second.ids == await cluster.reference(prompt)
    await cluster.until_handles(session, 1)


async def test_scenario_05_too_few_tokens_are_computed_rather_than_pulled(cluster: Cluster) -> None:
    """64 is the threshold; P holds all but some 8 + 20 tokens of the handle itself."""
    session = cluster.session()
    prompt = cluster.text(200)
    first = await cluster.turn(prompt, session, tokens=21)
    prompt += first.ids + cluster.text(50)

    second = await cluster.turn(prompt, session)

    assert second.report["outcome"] == "DECLINED_SMALL"
    assert second.tokens("pulled") == second.tokens("bytes") == 0
    assert second.ids == await cluster.reference(prompt)
    # The old handle was kept, then superseded by the new one.
    await cluster.until_handles(session, 1)


@pytest.mark.parametrize("kept", [0, 1, 31, 32, 33, 100])
async def test_scenario_01_a_stripped_history_is_trimmed_to_the_proven_prefix(
    cluster: Cluster, kept: int
) -> None:
    """The client drops the first part of the response (its reasoning) after ``kept`` tokens."""
    session = cluster.session()
    prompt = cluster.text(160)
    first = await cluster.turn(prompt, session, tokens=140)
    stripped = prompt + first.ids[:kept] + first.ids[kept + 20 :] + cluster.text(30)

    second = await cluster.turn(stripped, session)

    shared = len(prompt) + kept
    assert second.tokens("local") + second.tokens("pulled") <= shared // BLOCK * BLOCK
    assert (second.tokens("pulled") > 0) == (kept == 100)
    assert second.ids == await cluster.reference(stripped)


async def test_scenario_02_a_history_that_shares_nothing_is_not_pulled_and_the_handle_is_kept(
    cluster: Cluster,
) -> None:
    session = cluster.session()
    first = await cluster.turn(cluster.text(160), session, tokens=80)
    handle = (await cluster.until_handles(session, 1))[0]
    rewritten = cluster.text(200)

    second = await cluster.turn(rewritten, session)

    assert first.status == second.status == 200
    assert second.report["outcome"] == "DECLINED_MISMATCH"
    assert second.tokens("pulled") == 0
    assert second.ids == await cluster.reference(rewritten)
    # The old branch and the new one.
    assert handle.handle_id in {one.handle_id for one in await cluster.until_handles(session, 2)}


async def test_scenario_17_regenerating_computes_at_least_one_token(cluster: Cluster) -> None:
    """The handle covers more than the whole new prompt."""
    session = cluster.session()
    prompt = cluster.text(64)
    first = await cluster.turn(prompt, session, tokens=200)
    shorter = prompt + first.ids[:160]

    again = await cluster.turn(shorter, session)

    assert again.tokens("pulled") > 0
    assert again.tokens("computed") >= 1
    assert again.ids == await cluster.reference(shorter)


async def test_ten_turns_leave_one_handle(cluster: Cluster) -> None:
    session = cluster.session()
    prompt = cluster.text(120)
    for number in range(10):
        if number:
            await cluster.until_planned(session, router=number % 2)
        reply = await cluster.turn(prompt, session, tokens=70, router=number % 2)
        assert reply.ids == await cluster.reference(prompt, 70)
        if number:
            assert reply.report["outcome"] == "PULLED", reply.report
        prompt += reply.ids + cluster.text(20)
    await cluster.until_handles(session, 1)


async def test_scenario_11_three_forks_of_one_history_are_all_right(cluster: Cluster) -> None:
    session = cluster.session()
    prompt = cluster.text(160)
    first = await cluster.turn(prompt, session, tokens=80)
    forks = [prompt + first.ids + cluster.text(40) for _ in range(3)]

    replies = await asyncio.gather(
        *(cluster.turn(fork, session, router=n % 2) for n, fork in enumerate(forks))
    )

    assert sum(reply.report.get("outcome") == "PULLED" for reply in replies) <= 1
    for fork, reply in zip(forks, replies, strict=True):
        assert reply.ids == await cluster.reference(fork)
    await cluster.until_handles(session, 3)


async def test_requests_without_a_session_leave_no_handle(cluster: Cluster) -> None:
    prompt = cluster.text(300)

    reply = await cluster.turn(prompt, "", tokens=40)

    assert reply.report["reason"] == "NO_SESSION"
    assert reply.ids == await cluster.reference(prompt)
    assert await cluster.handles("") == []


async def test_no_response_shows_transfer_parameters(cluster: Cluster) -> None:
    reply = await cluster.turn(cluster.text(100), cluster.session())

    assert "kv_transfer_params" not in reply.body


async def test_scenario_26_parameters_of_the_client_reach_no_engine(cluster: Cluster) -> None:
    prompt = cluster.text(100)
    poison = {"do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": 1}

    reply = await cluster.turn(prompt, cluster.session(), kv_transfer_params=poison)

    assert reply.status == 200
    assert reply.ids == await cluster.reference(prompt)


async def test_what_p_found_in_its_own_cache_is_reported_without_any_pull(
    cluster: Cluster,
) -> None:
    prompt = cluster.text(200)
    await cluster.turn(prompt, "")
    before = await cluster.counted()

    again = await cluster.turn(prompt, "")

    counted = await cluster.counted_since(before, len(prompt))
    assert (again.tokens("local"), again.tokens("computed")) == (counted.local, counted.computed)
    assert counted.local == 192
