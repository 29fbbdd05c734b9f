"""The handle table, rule by rule. The state machine in tests/property tries them together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contraflow.core.chain import Proof
from contraflow.core.errors import (
    AmbiguousSession,
    ClaimNotFound,
    HandleClaimed,
    HandleExpired,
    HandleNotFound,
    LeaseTooShort,
    TenantMismatch,
)
from contraflow.core.handle import ClaimRequest, Handle, HandleTable, State

ASK = ClaimRequest("c1", "acme", "s", start_by=60, max_read=10)


def handle(request_id: str, *, deadline: float = 480.0, tenant: str = "acme") -> Handle:
    return Handle(
        handle_id=f"e/{request_id}",
        request_id=request_id,
        tenant=tenant,
        session_key="s",
        num_tokens=16,
        num_blocks=1,
        proof=Proof(16, 16, bytes(8), bytes(16)),
        params={},
        deadline=deadline,
        retained_at=0.0,
    )


def table_of(*handles: Handle, max_branches: int = 4) -> HandleTable:
    table = HandleTable(max_branches=max_branches)
    for one in handles:
        table.retain(one, lambda _: False)
    return table


def test_a_claim_needs_the_lease_to_reach_its_end() -> None:
    table = table_of(handle("r", deadline=70.0))
    with pytest.raises(LeaseTooShort):
        table.acquire(ASK, now=0.001)
    granted = table.acquire(ASK, now=0.0)
    assert granted.claim is not None
    assert (granted.claim.start_by, granted.claim.hold_until) == (60.0, 70.0)


def test_the_newest_decides_even_if_an_older_one_is_free() -> None:
    table = table_of(handle("old"), handle("new"))
    assert table.acquire(ASK, 0).request_id == "new"
    with pytest.raises(HandleClaimed):
        table.acquire(replace(ASK, claim_id="c2"), 0)


def test_messages_that_several_conversations_have_are_nobodys() -> None:
    """Such sessions have the digest of their messages for a key."""
    table = table_of(
        replace(handle("a"), message_digest="s", turn_id="t1"),
        replace(handle("b"), message_digest="s", turn_id="t2"),
    )
    with pytest.raises(AmbiguousSession):
        table.acquire(replace(ASK, message_digests=("s",)), 0.0)
    claimed = table.acquire(replace(ASK, message_digests=("s",), produced_by_turn_id="t1"), 0.0)
    assert claimed.request_id == "a"
    with pytest.raises(HandleNotFound):
        table.acquire(replace(ASK, claim_id="c3", produced_by_turn_id="t3"), 0.0)


def test_a_branch_is_told_by_its_messages() -> None:
    table = table_of(
        replace(handle("a"), message_digest="m1"), replace(handle("b"), message_digest="m2")
    )
    with pytest.raises(AmbiguousSession):
        table.acquire(replace(ASK, message_digests=("other",)), 0.0)
    claimed = table.acquire(replace(ASK, message_digests=("m3", "m1", "m2")), 0.0)
    assert claimed.request_id == "a"


def test_a_rewritten_history_gets_the_one_handle_there_is() -> None:
    table = table_of(replace(handle("a"), message_digest="m1"))
    assert table.acquire(replace(ASK, message_digests=("other",)), 0.0).request_id == "a"


def test_a_stale_hint_still_finds_the_newest() -> None:
    table = table_of(handle("old"), handle("new"))
    assert table.acquire(replace(ASK, hint_handle_id="e/old"), 0).request_id == "new"


def test_a_hint_tells_expired_from_unknown() -> None:
    table = table_of(handle("r"))
    table.end("r", State.EXPIRED)
    with pytest.raises(HandleExpired):
        table.acquire(replace(ASK, hint_handle_id="e/r"), 0)
    with pytest.raises(HandleNotFound):
        table.acquire(ASK, 0)


def test_a_repeated_claim_is_the_same_grant_until_it_may_no_longer_start() -> None:
    table = table_of(handle("r"))
    first = table.acquire(ASK, 0)
    assert table.acquire(replace(ASK, start_by=100), 59.9) == first
    with pytest.raises(HandleClaimed):
        table.acquire(ASK, 60.0)


def test_a_claim_id_is_not_worth_a_second_handle() -> None:
    table = table_of(handle("r1"))
    table.acquire(ASK, 0)
    table.end("r1", State.READ)
    table.retain(handle("r2"), lambda _: True)
    with pytest.raises(HandleClaimed):
        table.acquire(ASK, 1)
    assert table.acquire(replace(ASK, claim_id="c2"), 1).request_id == "r2"


def test_another_tenant_gets_neither_handle_nor_claim() -> None:
    table = table_of(handle("r"))
    with pytest.raises(TenantMismatch):
        table.acquire(replace(ASK, tenant="evil"), 0)
    table.acquire(ASK, 0)
    with pytest.raises(TenantMismatch):
        table.acquire(replace(ASK, tenant="evil"), 0)


def test_a_returned_claim_frees_the_handle_for_the_next() -> None:
    table = table_of(handle("r"))
    table.acquire(ASK, 0)
    assert table.return_claim("c1", 69.9).state is State.RETAINED
    assert table.acquire(replace(ASK, claim_id="c2"), 69.9).state is State.CLAIMED
    with pytest.raises(ClaimNotFound):
        table.return_claim("c1", 70)


def test_a_handle_that_was_superseded_under_its_claim_goes_with_it() -> None:
    table = table_of(handle("old"))
    table.acquire(ASK, 0)
    assert table.retain(handle("new"), lambda _: True) == []
    assert table.return_claim("c1", 1).state is State.RELEASED
    assert [one.request_id for one in table.live()] == ["new"]


def test_a_handle_whose_release_was_ordered_under_its_claim_goes_with_it() -> None:
    table = table_of(handle("r"), handle("q"))
    table.acquire(ASK, 0)
    assert [one.request_id for one in table.release(["e/q", "e/r"])] == ["r"]
    # The claim is as good as before: its turn may still read.
    assert table.acquire(ASK, 1).request_id == "q"
    assert table.return_claim("c1", 2).state is State.RELEASED
    assert table.live() == []


def test_a_claim_whose_hold_has_run_out_can_not_be_returned() -> None:
    table = table_of(handle("r"))
    table.acquire(ASK, 0)
    with pytest.raises(ClaimNotFound):
        table.return_claim("c1", 70.0)
    (lapsed,) = table.advance(70.0)
    assert lapsed.state is State.LAPSED
    assert table.live() == []


def test_what_is_claimed_is_neither_released_nor_superseded() -> None:
    table = table_of(handle("r1"))
    table.acquire(ASK, 0)
    assert table.release(["e/r1"]) == []
    assert table.retain(handle("r2"), lambda _: True) == []
    assert [live.request_id for live in table.live()] == ["r1", "r2"]


def test_the_oldest_branch_makes_room() -> None:
    table = table_of(*(handle(f"r{i}") for i in range(4)))
    assert [old.request_id for old in table.retain(handle("r4"), lambda _: False)] == ["r0"]


def test_a_claim_whose_blocks_expire_has_lapsed() -> None:
    table = table_of(handle("r"), handle("q"))
    table.acquire(ASK, 0)
    ends = [table.end(name, State.EXPIRED) for name in ("q", "r", "r")]
    assert [end.state if end else None for end in ends] == [State.LAPSED, State.EXPIRED, None]


def test_a_proof_that_fails_to_be_judged_changes_nothing() -> None:
    table = table_of(handle("r1"))

    def fails(_: Proof) -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        table.retain(handle("r2"), fails)
    assert [live.request_id for live in table.live()] == ["r1"]
