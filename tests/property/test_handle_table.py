"""The handle table against a naive model: every retained handle ends exactly once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from contraflow.core.chain import Proof
from contraflow.core.errors import (
    AmbiguousSession,
    ClaimNotFound,
    ContraflowError,
    HandleClaimed,
    HandleExpired,
    HandleNotFound,
    LeaseTooShort,
    TenantMismatch,
)
from contraflow.core.handle import LIVE, ClaimRequest, Handle, HandleTable, State

MAX_BRANCHES = 4
TENANTS, SESSIONS = ("t1", "t2"), ("s1", "s2")
DIGESTS = ("", "d1", "d2", "s1")  # a session key that is a digest: found by its messages


@dataclass
class Known:
    """What the model knows of one handle."""

    handle: Handle
    tokens: str
    state: State = State.RETAINED
    claim_id: str = ""
    start_by: float = 0.0
    hold_until: float = 0.0
    unwanted: bool = False


def proof_of(tokens: str) -> Proof:
    # Tokens are letters here and stand for themselves in the tip: the table never looks inside.
    return Proof(1, len(tokens), b"", tokens.encode())


class HandleTableMachine(RuleBasedStateMachine):
    """Rules are what the holder does; ``known`` is in the order of retention."""

    requests = Bundle("requests")
    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.table = HandleTable(max_branches=MAX_BRANCHES)
        self.now = 100.0
        self.known: list[Known] = []
        self.spent_claims: set[str] = set()

    def live(self) -> list[Known]:
        return [known for known in self.known if known.state in LIVE]

    def by_claim(self, claim_id: str) -> Known | None:
        found = [known for known in self.live() if known.claim_id == claim_id]
        return found[0] if found else None

    def ended(self, handles: list[Handle], state: State) -> None:
        for handle in handles:
            (known,) = [k for k in self.live() if k.handle.request_id == handle.request_id]
            assert handle.state is state
            if known.claim_id:
                self.spent_claims.add(known.claim_id)
            known.state, known.claim_id = state, ""

    @rule(
        target=requests,
        tenant=st.sampled_from(TENANTS),
        session=st.sampled_from(SESSIONS),
        digest=st.sampled_from(DIGESTS),
        tokens=st.text("ab", min_size=1, max_size=4),
        ttl=st.floats(0.5, 40),
    )
    def retain(self, tenant: str, session: str, digest: str, tokens: str, ttl: float) -> str:
        request_id = f"r{len(self.known)}"
        handle = Handle(
            handle_id=f"e/{request_id}",
            request_id=request_id,
            tenant=tenant,
            session_key=session,
            num_tokens=len(tokens),
            num_blocks=len(tokens),
            proof=proof_of(tokens),
            params={},
            deadline=self.now + ttl,
            retained_at=self.now,
            message_digest=digest,
        )
        of_session = [
            k for k in self.live() if (k.handle.tenant, k.handle.session_key) == (tenant, session)
        ]
        for k in of_session:
            if k.state is State.CLAIMED and tokens.startswith(k.tokens):
                k.unwanted = True
        siblings = [k for k in of_session if k.state is State.RETAINED]
        freed = self.table.retain(handle, lambda proof: tokens.startswith(proof.tip.decode()))
        covered = [k for k in siblings if tokens.startswith(k.tokens)]
        branches = [k for k in siblings if not tokens.startswith(k.tokens)]
        excess = branches[: max(0, len(branches) + 1 - MAX_BRANCHES)]
        expected = {k.handle.request_id for k in covered + excess}
        assert {old.request_id for old in freed} == expected
        self.ended(freed, State.RELEASED)
        self.known.append(Known(handle, tokens))
        unclaimed = [k for k in siblings if k.state is State.RETAINED]
        assert len(unclaimed) + 1 <= MAX_BRANCHES
        return request_id

    @rule(
        target=claims,
        claim_id=st.sampled_from([f"c{i}" for i in range(12)]) | claims,
        tenant=st.sampled_from(TENANTS),
        session=st.sampled_from(SESSIONS),
        digests=st.lists(st.sampled_from(DIGESTS[1:]), max_size=3, unique=True),
        start_by=st.floats(0.5, 20),
        max_read=st.floats(0.5, 10),
        hint=st.sampled_from(["", "e/r0", "e/r1", "e/r2"]),
    )
    def acquire(
        self,
        claim_id: str,
        tenant: str,
        session: str,
        digests: list[str],
        start_by: float,
        max_read: float,
        hint: str,
    ) -> str:
        request = ClaimRequest(claim_id, tenant, session, start_by, max_read, tuple(digests), hint)
        want = self.expected(request)
        if isinstance(want, Known):
            handle = self.table.acquire(request, self.now)
            if want.state is State.RETAINED:
                want.state, want.claim_id = State.CLAIMED, claim_id
                want.start_by = self.now + start_by
                want.hold_until = self.now + start_by + max_read
            assert handle.request_id == want.handle.request_id
            assert handle.tenant == tenant
            assert handle.claim is not None
            assert (handle.claim.claim_id, handle.claim.start_by, handle.claim.hold_until) == (
                claim_id,
                want.start_by,
                want.hold_until,
            )
            assert handle.deadline >= handle.claim.hold_until > self.now
        else:
            with pytest.raises(want):
                self.table.acquire(request, self.now)
        return claim_id

    def expected(self, request: ClaimRequest) -> Known | type[ContraflowError]:
        if mine := self.by_claim(request.claim_id):
            if (mine.handle.tenant, mine.handle.session_key) != (
                request.tenant,
                request.session_key,
            ):
                return TenantMismatch
            return mine if mine.start_by > self.now else HandleClaimed
        if request.claim_id in self.spent_claims:
            return HandleClaimed
        session = [k for k in self.live() if k.handle.session_key == request.session_key]
        mine_too = [k for k in session if k.handle.tenant == request.tenant]
        held = [k.handle.message_digest for k in mine_too]
        named = next((digest for digest in request.message_digests if digest in held), None)
        if named is not None:
            mine_too = [k for k in mine_too if k.handle.message_digest == named]
        if len(mine_too) > 1 and request.message_digests and named in (None, request.session_key):
            return AmbiguousSession
        if not mine_too:
            if any(k.handle.tenant != request.tenant for k in session):
                return TenantMismatch
            hinted = [k for k in self.known if k.handle.handle_id == request.hint_handle_id]
            ended = hinted and hinted[0].state is State.EXPIRED
            return HandleExpired if ended else HandleNotFound
        newest = mine_too[-1]
        if newest.state is State.CLAIMED:
            return HandleClaimed
        if newest.handle.deadline <= self.now:
            return HandleExpired
        if newest.handle.deadline < self.now + request.start_by + request.max_read:
            return LeaseTooShort
        return newest

    @rule(claim_id=claims)
    def return_claim(self, claim_id: str) -> None:
        known = self.by_claim(claim_id)
        if known is None or known.hold_until <= self.now:
            with pytest.raises(ClaimNotFound):
                self.table.return_claim(claim_id, self.now)
            return
        handle = self.table.return_claim(claim_id, self.now)
        assert handle.request_id == known.handle.request_id
        if known.unwanted:
            self.ended([handle], State.RELEASED)
            return
        assert handle.state is State.RETAINED
        known.state, known.claim_id = State.RETAINED, ""

    @rule(request_id=requests, ahead=st.floats(-20, 60))
    def every_worker_confirms(self, request_id: str, ahead: float) -> None:
        deadline = self.now + ahead
        alive = [k for k in self.live() if k.handle.request_id == request_id]
        extended = self.table.extend(request_id, deadline)
        if not alive or alive[0].state is State.CLAIMED or deadline <= alive[0].handle.deadline:
            assert extended is None
            return
        assert extended is not None
        assert extended.deadline == deadline
        alive[0].handle = replace(alive[0].handle, deadline=deadline)

    @rule(request_ids=st.lists(requests, max_size=3))
    def release(self, request_ids: list[str]) -> None:
        named = [k for k in self.live() if k.handle.request_id in request_ids]
        wanted = {k.handle.request_id for k in named if k.state is State.RETAINED}
        for k in named:
            if k.state is State.CLAIMED:
                k.unwanted = True
        freed = self.table.release([f"e/{request_id}" for request_id in request_ids])
        assert {handle.request_id for handle in freed} == wanted
        self.ended(freed, State.RELEASED)

    @rule(request_id=requests, seen=st.sampled_from([State.READ, State.EXPIRED]))
    def worker_lets_go(self, request_id: str, seen: State) -> None:
        alive = [k for k in self.live() if k.handle.request_id == request_id]
        ended = self.table.end(request_id, seen)
        if not alive:
            assert ended is None
            return
        assert ended is not None
        claimed = alive[0].state is State.CLAIMED
        state = State.LAPSED if claimed and seen is State.EXPIRED else seen
        self.ended([ended], state)

    @rule(seconds=st.floats(0.1, 30))
    def advance(self, seconds: float) -> None:
        self.now += seconds
        lapsed = {k.handle.request_id for k in self.live() if 0 < k.hold_until <= self.now}
        lapsed &= {k.handle.request_id for k in self.live() if k.state is State.CLAIMED}
        freed = self.table.advance(self.now)
        assert {handle.request_id for handle in freed} == lapsed
        self.ended(freed, State.LAPSED)

    @rule(seconds=st.floats(0.1, 30))
    def time_passes_unnoticed(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def it_holds_what_the_model_holds(self) -> None:
        live = self.table.live()
        assert [handle.request_id for handle in live] == [k.handle.request_id for k in self.live()]
        assert len(self.table) == len(live)
        for handle, known in zip(live, self.live(), strict=True):
            assert handle.state is known.state
            assert handle.deadline == known.handle.deadline
            assert (handle.state is State.CLAIMED) == (handle.claim is not None)
            assert (handle.claim.claim_id if handle.claim else "") == known.claim_id
            assert self.table.get(handle.request_id) == handle

    @invariant()
    def a_claim_holds_one_handle(self) -> None:
        claims = [handle.claim.claim_id for handle in self.table.live() if handle.claim]
        assert len(set(claims)) == len(claims)


TestHandleTable = HandleTableMachine.TestCase
