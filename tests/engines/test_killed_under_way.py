"""What is killed while turns are under way, on real engines: the decode engine of conversations,
and the agent that has granted a read which still runs. The clocks of P and D are days apart."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio
from tests.contract.engine.test_claims import granted, pulled
from tests.contract.engine.test_losses import FEW, count_records
from tests.engines.test_late_reads import ROOT, Slow
from tests.support.cluster import Cluster, Reply
from tests.support.conversation import Conversation
from tests.support.running_agent import denied
from tests.support.streamed import streamed
from tests.support.wait import until_good

from contraflow.cli.deployment import Deployment, DeploymentSpec
from contraflow.cli.deployment.control_plane import engines_in_view
from contraflow.core.errors import Reason
from contraflow.core.transfer_params import HOLD_UNTIL
from contraflow.v1.handle_pb2 import HANDLE_STATE_CLAIMED, Handle
from contraflow.wire.params import params_from_proto

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

LONG = 3000
"""Tokens of an answer that is still being made when its engine is killed."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def slow(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Slow]:
    folder = tmp_path_factory.mktemp("slow")
    spec = DeploymentSpec(
        routers=2,
        with_reference=True,
        # Longer than an engine takes to start: a claim of before is still good then.
        claim_start_by=240.0,
        claim_max_read=60.0,
        acquire_deadline=10.0,
        connector="SkewedConnector",
        connector_module="tests.engines.skewed_connector",
        engine_env={"PYTHONPATH": str(ROOT), "CONTRAFLOW_TEST_SLOW": str(folder)},
    )
    async with Deployment(spec) as deployment:
        yield Slow(Cluster(deployment), folder)


async def begun(cluster: Cluster, count: int) -> list[Conversation]:
    """Conversations of one turn, whose handle every router knows."""
    talks = [Conversation.with_opening(cluster, 160, router=n % 2) for n in range(count)]
    for talk in talks:
        await talk.turn(100)
        for router in range(2):
            await cluster.until_planned(talk.session, router)
    return talks


async def running(cluster: Cluster) -> float:
    """Requests in D's batch."""
    return (await cluster.deployment.metrics(cluster.decode))["vllm:num_requests_running"]


async def being_read(cluster: Cluster, session: str) -> Handle:
    """The session's handle, once it is claimed and P has blocks to read it into."""
    await until_good(lambda: cluster.pinned(cluster.prefill), lambda share: share > FEW)
    (handle,) = await until_good(
        partial(cluster.handles, session),
        lambda found: [one.state for one in found] == [HANDLE_STATE_CLAIMED],
    )
    return handle


async def nothing_is_left(cluster: Cluster) -> None:
    """Without what is retained both engines are empty, and etcd holds their two records."""
    await cluster.release_all()
    for engine in (cluster.prefill, cluster.decode):
        await cluster.until_pinned_below(1 / DeploymentSpec.blocks, engine)
    await until_good(partial(count_records, cluster), lambda count: count == 2)


async def test_scenario_08_decode_is_killed_in_the_middle_of_conversations(slow: Slow) -> None:
    cluster, deployment = slow.cluster, slow.cluster.deployment
    old, salt = await cluster.decode_id(), uuid.uuid4().hex
    idle, streaming, whole, reading = talks = await begun(cluster, 4)
    assert (await idle.turn(100)).report["outcome"] == "PULLED"
    claimed_prompt, claimed = await granted(cluster, salt)

    router = deployment.routers[streaming.router]
    async with streamed(router, streaming.prompt, streaming.session, LONG) as (said, ended):
        await asyncio.wait_for(said.begun.wait(), 60)
        unanswered = asyncio.create_task(
            cluster.turn(whole.prompt, whole.session, LONG, whole.router)
        )
        await until_good(partial(running, cluster), lambda count: count == 2)
        with slow.held_up("waiting"):
            late = asyncio.create_task(
                cluster.turn(reading.prompt, reading.session, 40, reading.router)
            )
            await being_read(cluster, reading.session)
            await deployment.kill(cluster.decode.name)
        await ended
    # As far as it came it was right, and its client sees that it was cut.
    assert said.ids == await cluster.reference(streaming.prompt, len(said.ids))
    assert said.cut
    assert not said.complete
    failed: list[Reply] = [await unanswered, await late]
    failed.append(await cluster.turn(idle.prompt, idle.session, 40, idle.router))
    # Nobody else decodes. What was being read P has computed, and D was asked in vain.
    assert [reply.status for reply in failed] == [502] * 3
    assert failed[0].report["retried"] == "DECODE_WITHOUT_BLOCKS"
    assert failed[1].report["outcome"] == "FAILED"
    assert failed[2].report["decision"] == "RECOMPUTE"

    await deployment.restart(cluster.decode.name)

    new = await cluster.decode_id()
    assert new != old
    for one in deployment.routers:
        assert old not in await engines_in_view(one.grpc)
    # Who has a claim of before reads nothing from whoever is there now.
    outcome, reply = await pulled(cluster, claimed, claimed_prompt, salt=salt)
    assert outcome == "FAILED"
    assert reply.ids == await cluster.reference(claimed_prompt, 1)
    for talk in talks:
        again = await talk.turn(100)
        assert (again.report["decision"], again.report["decode"]) == ("RECOMPUTE", new)
        await cluster.until_planned(talk.session, talk.router)
        resumed = await talk.turn()
        assert (resumed.report["outcome"], resumed.report["decode"]) == ("PULLED", new)
    await nothing_is_left(cluster)


@pytest.mark.parametrize("agent_is_back", ["before the read", "after the read"])
async def test_scenario_31_a_read_outlives_the_agent_that_granted_it(
    slow: Slow, agent_is_back: str
) -> None:
    """Meanwhile the client repeats the turn, through another router."""
    cluster, deployment = slow.cluster, slow.cluster.deployment
    (talk,) = await begun(cluster, 1)
    await cluster.until_pinned_below(1 / DeploymentSpec.blocks, cluster.prefill)
    before, length = await cluster.counted(), len(talk.prompt)

    with slow.held_up("waiting"):
        turn = asyncio.create_task(cluster.turn(talk.prompt, talk.session, 100, router=0))
        handle = await being_read(cluster, talk.session)
        await deployment.kill("agent")
        if agent_is_back == "before the read":
            await deployment.restart("agent")
            (kept,) = await cluster.until_handles(talk.session, 1)
            assert (kept.state, kept.claim_id) == (HANDLE_STATE_CLAIMED, handle.claim_id)
            assert await denied(cluster.acquire(talk.session)) is Reason.HANDLE_CLAIMED
            assert await cluster.release(handle.handle_id) == []
        again = asyncio.create_task(cluster.turn(talk.prompt, talk.session, 100, router=1))
        await until_good(cluster.counted, lambda now: now.total >= before.total + length)
        assert not turn.done()
    reply, repeated = await turn, await again
    if agent_is_back == "after the read":
        await deployment.restart("agent")

    assert reply.report["outcome"] == "PULLED", reply.report
    assert repeated.report["decision"] == "RECOMPUTE", repeated.report
    assert repeated.ids == reply.ids
    # One read: of no other have P and D heard.
    counted = await cluster.counted_since(before, 2 * length)
    assert (counted.pulled, counted.bytes) == (reply.tokens("pulled"), reply.tokens("bytes"))
    decode = await deployment.metrics(cluster.decode)
    assert decode.get("vllm:nixl_num_notifications_after_expiry_total", 0.0) == 0.0
    await talk.heard(reply.ids, 100, reply.report)
    # What was read is gone, and the conversation goes on with what came of it.
    (left,) = await cluster.until_handles(talk.session, 1)
    assert left.handle_id != handle.handle_id
    for router in range(2):
        await cluster.until_planned(talk.session, router)
        talk.router = router
        assert (await talk.turn(100)).report["outcome"] == "PULLED"
    await nothing_is_left(cluster)


@pytest.mark.parametrize(
    ("moved", "outcome"),
    [("", "PULLED"), ("remote_blocks_expiry_time", "FAILED"), (HOLD_UNTIL, "FAILED")],
    ids=["in time", "started late", "ended late"],
)
async def test_scenario_03_deadlines_hold_between_clocks_that_are_days_apart(
    slow: Slow, moved: str, outcome: str
) -> None:
    """The last tests here: what is not read stays claimed for minutes."""
    cluster, salt = slow.cluster, uuid.uuid4().hex
    prompt, grant = await granted(cluster, salt)
    params = params_from_proto(grant.transfer_params)
    assert params["remote_blocks_expiry_time"] > time.perf_counter() + 2 * 86_400  # D's clock
    changed = {moved: params[moved] - 1000} if moved else {}

    became, reply = await pulled(cluster, grant, prompt, salt=salt, **changed)

    assert became == outcome
    assert reply.ids == await cluster.reference(prompt, 1)


async def test_prefill_is_killed_before_decode_has_read(slow: Slow) -> None:
    """It does not come back: the last test of all here."""
    cluster, deployment = slow.cluster, slow.cluster.deployment
    talk = Conversation.with_opening(cluster, 320)
    free, before = await cluster.until_steady(), await slow.decode()
    with slow.held_up("waiting"):
        turn = asyncio.create_task(cluster.turn(talk.prompt, talk.session, 60))
        await until_good(cluster.pinned, lambda share: share > free + FEW)
        await deployment.kill(cluster.prefill.name)
    reply = await turn

    assert reply.status == 200, reply
    await talk.heard(reply.ids, 60, reply.report)
    await until_good(slow.decode, lambda now: now.computed >= before.computed + 320)
    await cluster.until_handles(talk.session, 1)
    # Nobody computes for decode any more.
    assert (await talk.turn()).report["reason"] == "PREFILL_UNREACHABLE"
