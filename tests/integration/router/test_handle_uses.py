"""What a turn does with a handle that it was granted: pulled in part, kept, or freed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.fake_engine import Received
from tests.support.router_world import HANDLE_PARAMS, PROOF, config_of
from tests.support.talk import HI, MORE, YES, Talk, talk_of
from tests.support.wait import until

from contraflow.core.handle import State
from contraflow.core.handle_use import DecideUse, HandleUse
from contraflow.core.instructions import Instructions, Pull
from contraflow.core.plan import Decision, PlanReason

pytestmark = pytest.mark.integration

KEEP = HandleUse(Decision.RECOMPUTE, PlanReason.BELOW_THRESHOLD)
FREE = replace(KEEP, release=True)
UNWANTED = Pull("DECLINED_UNWANTED", "d1", offered_tokens=299, proven_tokens=299)


def always(use: HandleUse) -> DecideUse:
    return lambda num_tokens, least: use


def obey(received: Received) -> Pull | None:
    """As a prefill engine with the connector does."""
    told = Instructions.from_json(received.params["contraflow"])
    if told.proof is None:
        return None
    return Pull("PULLED", "d1", 299, 299) if told.wants_pull else UNWANTED


async def seen_by_decode(talk: Talk) -> list[dict[str, State]]:
    """Handles as they are whenever decode is about to answer, once no claim is held."""
    retain, seen = talk.world.decode.script.before_answer, list[dict[str, State]]()
    assert retain is not None

    def settled() -> bool:
        return State.CLAIMED not in talk.owner.handles().values()

    async def see(received: Received) -> None:
        await until(settled, "the claim ends")
        seen.append(talk.owner.handles())
        await retain(received)

    talk.world.decode.script.before_answer = see
    return seen


async def test_a_handle_that_is_kept_goes_along_and_its_claim_comes_back() -> None:
    async with talk_of(decide_use=always(KEEP)) as talk:
        talk.world.prefill.script.pull = obey
        first = await talk.say(HI)
        talk.publish()
        seen = await seen_by_decode(talk)

        second = await talk.answer(HI, YES, MORE)

        assert (second.plan["decision"], second.plan["reason"]) == ("RECOMPUTE", "BELOW_THRESHOLD")
        assert second.plan["outcome"] == "DECLINED_UNWANTED"
        sent = talk.world.prefill.last
        assert sent.params["remote_block_ids"] == HANDLE_PARAMS["remote_block_ids"]
        told = Instructions.from_json(sent.params["contraflow"])
        assert (told.proof, told.wants_pull) == (PROOF, False)
        assert seen == [{first: State.RETAINED}]
        assert talk.owner.reads == []


async def test_a_handle_that_is_freed_is_gone_before_the_turn_has_one_of_its_own() -> None:
    async with talk_of(decide_use=always(FREE)) as talk:
        talk.world.prefill.script.pull = obey
        await talk.say(HI)
        talk.publish()
        seen = await seen_by_decode(talk)

        second = await talk.answer(HI, YES, MORE)

        assert second.plan["outcome"] == "DECLINED_UNWANTED"
        assert seen == [{}]
        assert talk.owner.reads == []
        await talk.left(second.plan["turn"])


@pytest.mark.parametrize("use", [KEEP, FREE], ids=["kept", "freed"])
async def test_a_handle_that_nobody_said_was_left_alone_is_not_given_back(use: HandleUse) -> None:
    """By the time it answers an engine with an older connector has read it, whatever it was
    told."""
    async with talk_of(decide_use=always(use)) as talk:
        first = await talk.say(HI)
        talk.publish()
        talk.world.prefill.script.pull = lambda received: None

        await talk.say(HI, YES, MORE)

        await talk.world.app.close()
        assert talk.owner.reads == [first]
        assert talk.owner.returned == []
        assert first not in talk.owner.released


@pytest.mark.parametrize("use", [KEEP, FREE], ids=["kept", "freed"])
async def test_a_handle_that_was_never_sent_needs_no_word_of_prefill(use: HandleUse) -> None:
    async with talk_of(decide_use=always(use)) as talk:
        first = await talk.say(HI)
        talk.publish()
        await talk.world.prefill.stop()
        seen = await seen_by_decode(talk)

        second = await talk.answer(HI, YES, MORE)

        assert second.plan["reason"] == "PREFILL_UNREACHABLE"
        assert seen == ([{}] if use.release else [{first: State.RETAINED}])


async def test_prefill_is_told_which_blocks_to_pull() -> None:
    use = HandleUse(min_pull_tokens=5, pull_blocks=7)
    async with talk_of(decide_use=always(use)) as talk:
        await talk.say(HI)
        talk.publish()
        assert (await talk.answer(HI, YES, MORE)).plan["decision"] == "PULL"
        told = Instructions.from_json(talk.world.prefill.last.params["contraflow"])
        assert (told.wants_pull, told.min_pull_tokens, told.pull_blocks) == (True, 5, 7)
        assert talk.world.decode.last.ours["decision"] == "PULL"


async def test_a_handle_that_its_grant_shows_to_be_small_is_not_wanted() -> None:
    """Until the directory has told, the router knows of the handle but not its size."""
    config = config_of("recompute_threshold_tokens = 300")
    async with talk_of(config) as talk:
        talk.world.prefill.script.pull = obey
        first = await talk.say(HI)

        second = await talk.answer(HI, YES, MORE)

        assert (second.plan["decision"], second.plan["reason"]) == ("RECOMPUTE", "BELOW_THRESHOLD")
        assert (second.plan["offered"], second.plan["outcome"]) == ("299", "DECLINED_UNWANTED")
        await talk.left(second.plan["turn"])
        assert talk.owner.released == [first]
        assert talk.owner.reads == []
