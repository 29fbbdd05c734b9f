"""Histories that are not what was generated: stripped, rendered otherwise, cut, regenerated."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.cluster import Cluster, Reply

pytestmark = pytest.mark.asyncio(loop_scope="session")

BLOCK = 32
THRESHOLD = 64


def reused(reply: Reply) -> int:
    """Tokens of the prompt that P did not compute."""
    return reply.tokens("local") + reply.tokens("pulled")


async def test_scenario_01_a_conversation_whose_reasoning_is_stripped_from_every_turn(
    cluster: Cluster,
) -> None:
    """Each reply is 60 tokens of reasoning and 80 of an answer; only the answer comes back."""
    session, history, last = cluster.session(), cluster.text(100), 0

    for number in range(4):
        prompt = history + cluster.text(30)
        reply = await cluster.turn(prompt, session, tokens=140, router=number % 2)

        assert reply.ids == await cluster.reference(prompt, 140)
        if number:
            # All that was generated came after reasoning that is gone: only the prompt is left.
            assert reused(reply) <= last // BLOCK * BLOCK
            assert int(reply.report["discarded"]) >= 139
        await cluster.until_planned(session, router=(number + 1) % 2)
        history, last = prompt + reply.ids[60:], len(prompt)


@pytest.mark.parametrize("where", ["header", "middle", "end marker"])
@pytest.mark.parametrize("change", ["another token", "one more", "one less"])
async def test_scenario_02_history_is_rendered_one_token_differently(
    cluster: Cluster, where: str, change: str
) -> None:
    session, prompt = cluster.session(), cluster.text(200)
    first = await cluster.turn(prompt, session, tokens=140)
    spot = {"header": 1, "middle": 100, "end marker": 138}[where]
    other = 40 + (first.ids[spot] - 40 + 1) % 80
    rest = first.ids[spot:]
    rendered = {
        "another token": [other, *rest[1:]],
        "one more": [other, *rest],
        "one less": rest[1:],
    }
    second_prompt = prompt + first.ids[:spot] + rendered[change] + cluster.text(40)
    # One less may leave the same token in its place, as a repeated letter does.
    generated = prompt + first.ids
    same = next(n for n, (a, b) in enumerate(zip(generated, second_prompt)) if a != b)  # noqa: B905

    second = await cluster.turn(second_prompt, session)

    assert reused(second) <= same
    assert second.report["decision"] == "PULL"
    proven = same // BLOCK * BLOCK
    assert (second.tokens("pulled") > 0) == (proven - 192 >= THRESHOLD)
    assert int(second.report["discarded"]) == 339 - proven
    assert second.ids == await cluster.reference(second_prompt)


@pytest.mark.parametrize(("missing", "outcome"), [(63, "DECLINED_SMALL"), (64, "PULLED")])
async def test_scenario_05_the_threshold_to_the_token(
    cluster: Cluster, missing: int, outcome: str
) -> None:
    """P holds 192 tokens of the history; D holds ``missing`` more."""
    session, prompt = cluster.session(), cluster.text(200)
    first = await cluster.turn(prompt, session, tokens=192 + missing - len(prompt) + 1)
    prompt += first.ids + cluster.text(40)

    second = await cluster.turn(prompt, session)

    assert second.report["outcome"] == outcome
    assert second.tokens("pulled") == (missing if outcome == "PULLED" else 0)
    assert second.ids == await cluster.reference(prompt)
    # Either way the old handle is gone, one lives, and the conversation goes on with that.
    (handle,) = await cluster.until_handles(session, 1)
    assert handle.num_tokens == len(prompt) + 39


@pytest.mark.parametrize("ended", ["length", "stop"])
@pytest.mark.parametrize("total", [223, 224, 225, 256, 257])
async def test_scenario_16_the_last_token_has_no_kv_however_generation_ends(
    cluster: Cluster, ended: str, total: int
) -> None:
    """Prompt and reply fill their blocks at 224 and 256; 10 of the tokens are the reply's."""
    session, prompt = cluster.session(), cluster.text(total - 10)
    expected = await cluster.reference(prompt, 10)
    while expected[-1] in expected[:-1]:
        prompt = cluster.text(total - 10)
        expected = await cluster.reference(prompt, 10)
    stop: dict[str, Any] = {"stop_token_ids": [expected[-1]]} if ended == "stop" else {}

    first = await cluster.turn(prompt, session, tokens=40 if stop else 10, **stop)
    (handle,) = await cluster.until_handles(session, 1)
    prompt += first.ids + cluster.text(50)
    second = await cluster.turn(prompt, session)

    assert first.body["choices"][0]["finish_reason"] == ended
    assert first.ids == expected
    assert handle.num_tokens == total - 1
    assert reused(second) <= handle.num_tokens
    assert second.ids == await cluster.reference(prompt)


async def test_scenario_16_stop_tokens_that_may_not_come_yet(cluster: Cluster) -> None:
    """What is barred until there are 50 tokens changes the reply itself."""
    session, prompt = cluster.session(), cluster.text(200)
    expected = await cluster.reference(prompt, 30)
    fields: dict[str, Any] = {"stop_token_ids": expected[:5], "min_tokens": 50}
    plain = await cluster.leg(cluster.deployment.reference, prompt, None, 80, **fields)

    first = await cluster.turn(prompt, session, tokens=80, **fields)
    (handle,) = await cluster.until_handles(session, 1)
    prompt += first.ids + cluster.text(50)
    second = await cluster.turn(prompt, session)

    assert first.ids == plain.ids
    assert len(first.ids) > 50
    assert not set(expected[:5]) & set(first.ids[:50])
    assert handle.num_tokens == 200 + len(first.ids) - 1
    assert second.ids == await cluster.reference(prompt)


async def test_scenario_16_a_reply_that_a_stop_string_ends_leaves_no_handle(
    cluster: Cluster,
) -> None:
    """The engine knows no strings: its server sees one, and aborts the request."""
    session, prompt = cluster.session(), cluster.text(200)
    text = (await cluster.turn(prompt, "", tokens=40)).body["choices"][0]["text"]

    first = await cluster.turn(prompt, session, tokens=80, stop=[text[20:23]])
    prompt += first.ids + cluster.text(50)
    second = await cluster.turn(prompt, session)

    assert first.body["choices"][0]["finish_reason"] == "stop"
    assert second.report["decision"] == "RECOMPUTE"
    assert second.ids == await cluster.reference(prompt)
    await cluster.until_handles(session, 1)


@pytest.mark.parametrize("length", [256, 257, 299, 300])
async def test_scenario_17_the_handle_covers_the_whole_new_prompt(
    cluster: Cluster, length: int
) -> None:
    """Up to and beyond the 299 tokens of the handle; twice, so that P then holds it all itself."""
    session, prompt = cluster.session(), cluster.text(100)
    first = await cluster.turn(prompt, session, tokens=200)
    again = (prompt + first.ids)[:length]

    replies = [await cluster.turn(again, session) for _ in range(2)]

    assert replies[0].report["outcome"] == "PULLED"
    expected = await cluster.reference(again)
    for reply in replies:
        assert reply.status == 200
        assert reply.tokens("computed") >= 1
        assert reused(reply) + reply.tokens("computed") == length
        assert reply.ids == expected
