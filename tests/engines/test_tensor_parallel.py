"""Prefill and decode engines of two ranks each: a handle is what both of them hold, and it ends
when both have let go."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tests.contract.engine.test_claims import granted, with_proof
from tests.support.cluster import Cluster
from tests.support.running_agent import denied
from tests.support.wait import until_good

from contraflow.cli.deployment import Deployment, DeploymentSpec
from contraflow.core.errors import Reason
from contraflow.core.fleet import Role
from contraflow.core.transfer_params import OURS

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

ROOT = Path(__file__).resolve().parents[2]
RANKS = 2
TTL = 16.0
MAX_IDLE = 1.5 * TTL  # renewed at 8 and at 16 seconds, so expired at 32


@dataclass(frozen=True)
class Ranks:
    """The deployment, and what the halves of its connectors have said to each other."""

    cluster: Cluster
    folder: Path

    def told(self, role: Role, kind: str) -> list[tuple[int, Any]]:
        """(step, item) of one kind, in order."""
        path = self.folder / f"{role}.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        whole = [json.loads(line) for line in lines if line.endswith("\n")]
        return [(line["step"], item) for line in whole for item in line.get(kind, ())]

    def ends(self, role: Role) -> dict[str, list[str]]:
        """How each rank came to let go of a request's blocks, by request id."""
        found: dict[str, list[str]] = {}
        for _, (request_id, state) in self.told(role, "ends"):
            found.setdefault(request_id, []).append(state)
        return found

    def transfers(self, role: Role, request_id: str) -> list[tuple[int, int]]:
        """Bytes and descriptors of the reads that the ranks made for a request."""
        return [
            (moved, descriptors)
            for _, (reader, moved, descriptors) in self.told(role, "transfers")
            if request_id in reader
        ]

    @contextmanager
    def second_is(self, flag: str) -> Iterator[None]:
        """Let the second rank of each engine be ``deaf`` or ``late``."""
        path = self.folder / flag
        path.touch()
        try:
            yield
        finally:
            path.unlink()

    async def confirmations(self, request_id: str) -> Counter[float]:
        """By deadline, how many ranks of D have confirmed that they hold a request's blocks."""
        renewed = self.told(Role.DECODE, "renewed")
        return Counter(deadline for _, (of, deadline) in renewed if of == request_id)


@asynccontextmanager
async def without_leftovers() -> AsyncIterator[None]:
    """vLLM kills its workers, and so leaves the memory that ranks share; 16 MiB each time."""

    def segments() -> set[Path]:
        return set(Path("/dev/shm").glob("vllm_dist_*"))

    before = segments()
    try:
        yield
    finally:
        for left in segments() - before:
            left.unlink(missing_ok=True)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def ranks(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ranks]:
    folder = tmp_path_factory.mktemp("told")
    spec = DeploymentSpec(
        with_reference=True,
        tensor_parallel=RANKS,
        retention_ttl=TTL,
        retention_max_idle=MAX_IDLE,
        claim_start_by=5.0,
        claim_max_read=2.0,
        connector="TellingConnector",
        connector_module="tests.engines.telling_connector",
        engine_env={"PYTHONPATH": str(ROOT), "CONTRAFLOW_TEST_TELL": str(folder)},
    )
    async with without_leftovers(), Deployment(spec) as deployment:
        cluster = Cluster(deployment)
        # The first read of an engine from another may take most of a minute on two cores.
        session, prompt = cluster.session(), cluster.text(160)
        first = await cluster.turn(prompt, session)
        await cluster.until_planned(session, router=0)
        await cluster.turn(prompt + first.ids + cluster.text(40), session)
        await until_idle(cluster)
        yield Ranks(cluster, folder)


async def until_idle(cluster: Cluster) -> None:
    """Returns once nothing is retained, and D's pool is free."""
    await cluster.release_all()
    await cluster.until_pinned_below(1 / DeploymentSpec.blocks)


async def test_both_ranks_read_and_the_owner_says_so(ranks: Ranks) -> None:
    cluster, session = ranks.cluster, ranks.cluster.session()
    prompt = cluster.text(160)
    before = ranks.ends(Role.PREFILL)

    first = await cluster.turn(prompt, session, tokens=100)
    assert first.ids == await cluster.reference(prompt, 100)
    (handle,) = await cluster.until_handles(session, 1)
    prompt += first.ids + cluster.text(40)
    await cluster.until_planned(session, router=0)
    async with cluster.last_state(handle) as last_state:
        second = await cluster.turn(prompt, session, tokens=100)

        assert await last_state == "READ"
    assert second.report["decision"] == "PULL"
    assert second.tokens("pulled") > 0
    assert second.ids == await cluster.reference(prompt, 100)
    request_id = handle.handle_id.partition("/")[2]
    assert ranks.ends(Role.DECODE)[request_id] == ["READ"] * RANKS
    forward = [ends for of, ends in ranks.ends(Role.PREFILL).items() if of not in before]
    assert forward == [["READ"] * RANKS] * 2
    await until_idle(cluster)


async def test_the_report_of_a_pull_counts_what_all_ranks_moved(ranks: Ranks) -> None:
    cluster, salt, request_id = ranks.cluster, uuid.uuid4().hex, uuid.uuid4().hex
    prompt, grant = await granted(cluster, salt)

    reply = await cluster.leg(
        cluster.prefill, prompt, with_proof(grant), cache_salt=salt, request_id=request_id
    )

    assert reply.ids == await cluster.reference(prompt, 1)
    report = reply.body["kv_transfer_params"][OURS]["pull"]
    assert report["outcome"] == "PULLED"
    moved = ranks.transfers(Role.PREFILL, request_id)
    assert len(moved) == RANKS
    assert min(moved) > (0, 0)
    assert report["bytes"] == sum(size for size, _ in moved)
    assert report["descriptors"] == sum(descriptors for _, descriptors in moved)
    # Heads are divided among the ranks, so that neither moves all of a block.
    assert len({size for size, _ in moved}) == 1
    await until_idle(cluster)


async def test_a_read_that_fails_on_one_rank_alone_is_recomputed(ranks: Ranks) -> None:
    cluster, session = ranks.cluster, ranks.cluster.session()
    prompt = cluster.text(160)
    first = await cluster.turn(prompt, session, tokens=100)
    prompt += first.ids + cluster.text(40)
    await cluster.until_planned(session, router=0)

    with ranks.second_is("late"):
        second = await cluster.turn(prompt, session, tokens=100)

    assert second.report["outcome"] == "FAILED"
    assert second.ids == await cluster.reference(prompt, 100)
    await until_idle(cluster)


async def test_a_handle_that_both_ranks_hold_for_longer_is_pulled_after_its_first_lease(
    ranks: Ranks,
) -> None:
    cluster, session = ranks.cluster, ranks.cluster.session()
    prompt = cluster.text(160)
    first = await cluster.turn(prompt, session, tokens=100)
    (handle,) = await cluster.until_handles(session, 1)
    first_lease = time.monotonic() + TTL
    prompt += first.ids + cluster.text(40)
    request_id = handle.handle_id.partition("/")[2]

    held = await until_good(
        lambda: ranks.confirmations(request_id),
        lambda held: len(held) == 2 and time.monotonic() > first_lease,
        within=2 * TTL,
    )
    assert set(held.values()) == {RANKS}
    async with cluster.last_state(handle) as last_state:
        second = await cluster.turn(prompt, session)

        assert await last_state == "READ"
    assert second.report["decision"] == "PULL"
    assert second.tokens("pulled") > 0
    assert second.ids == await cluster.reference(prompt)
    assert ranks.ends(Role.DECODE)[request_id] == ["READ"] * RANKS
    await until_idle(cluster)


async def test_a_handle_that_is_renewed_no_more_expires_on_both_ranks(ranks: Ranks) -> None:
    cluster, session = ranks.cluster, ranks.cluster.session()
    await cluster.turn(cluster.text(160), session)
    (handle,) = await cluster.until_handles(session, 1)
    request_id = handle.handle_id.partition("/")[2]

    async with cluster.last_state(handle) as last_state:
        assert await last_state == "EXPIRED"

    await until_good(
        lambda: ranks.confirmations(request_id), lambda held: set(held.values()) == {RANKS}
    )
    await cluster.until_pinned_below(1 / DeploymentSpec.blocks)
    assert ranks.ends(Role.DECODE)[request_id] == ["EXPIRED"] * RANKS
    # The owner's own word: of a handle that was read it would say that there is none.
    assert await denied(cluster.acquire(session, hint=handle.handle_id)) is Reason.HANDLE_EXPIRED


async def test_what_one_rank_has_not_renewed_ends_with_its_first_lease_on_both(
    ranks: Ranks,
) -> None:
    cluster, session = ranks.cluster, ranks.cluster.session()
    await cluster.turn(cluster.text(160), session)
    (handle,) = await cluster.until_handles(session, 1)
    request_id = handle.handle_id.partition("/")[2]

    with ranks.second_is("deaf"):
        async with cluster.last_state(handle) as last_state:
            assert await last_state == "EXPIRED"

    await cluster.until_pinned_below(1 / DeploymentSpec.blocks)
    held = await ranks.confirmations(request_id)
    assert set(held.values()) == {1}
    # The rank that was to hold the blocks for longer was told to free them.
    ends = ranks.ends(Role.DECODE)[request_id]
    assert len(ends) == RANKS
    assert "RELEASED" in ends


async def test_a_release_frees_on_both_ranks_within_two_steps(ranks: Ranks) -> None:
    cluster, session = ranks.cluster, ranks.cluster.session()
    await cluster.turn(cluster.text(160), session)
    (handle,) = await cluster.until_handles(session, 1)
    request_id = handle.handle_id.partition("/")[2]

    async with cluster.last_state(handle) as last_state:
        assert await cluster.release(handle.handle_id) == [handle.handle_id]
        assert await last_state == "RELEASED"

    await cluster.until_pinned_below(1 / DeploymentSpec.blocks)
    assert ranks.ends(Role.DECODE)[request_id] == ["RELEASED"] * RANKS
    (ordered,) = (at for at, of in ranks.told(Role.DECODE, "releases") if of == request_id)
    (freed,) = (at for at, of in ranks.told(Role.DECODE, "freed") if of == request_id)
    assert freed - ordered < 2
