"""The handle table: the linearization point of retention, claims and ends.

Pure: every method takes ``now``, seconds on one monotonic clock. Not thread-safe: the
holder guards it with one short lock. All effects on blocks are left to the holder, which
obeys what the methods return.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

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
from contraflow.core.transfer_params import Params


class State(StrEnum):
    """The life of a handle. READ, RELEASED, EXPIRED, LAPSED and LOST are ends."""

    RETAINED = "RETAINED"
    CLAIMED = "CLAIMED"
    READ = "READ"
    RELEASED = "RELEASED"
    EXPIRED = "EXPIRED"
    LAPSED = "LAPSED"
    LOST = "LOST"


LIVE = frozenset({State.RETAINED, State.CLAIMED})


@dataclass(frozen=True, slots=True)
class Claim:
    """One live right to read a handle once. Instants are the owner's."""

    claim_id: str
    start_by: float
    hold_until: float


@dataclass(frozen=True, slots=True)
class Handle:
    """Retained blocks of one finished request. ``deadline``: every worker is known to hold
    them until then. ``retained_at``: since then, on the same clock. ``unwanted``: a newer one
    covers it, or its release was ordered, and it only waits for its claim to end."""

    handle_id: str
    request_id: str
    tenant: str
    session_key: str
    num_tokens: int
    num_blocks: int
    proof: Proof
    params: Params = field(repr=False)
    deadline: float
    retained_at: float
    message_digest: str = ""
    turn_id: str = ""
    state: State = State.RETAINED
    claim: Claim | None = None
    unwanted: bool = False


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """Who asks for what. ``start_by`` and ``max_read`` are seconds from ``now``.

    With ``produced_by_turn_id`` only the handle of that turn will do. ``message_digests``, the
    latest first, are those of turns that the reader may go on from: they tell branches apart.
    """

    claim_id: str
    tenant: str
    session_key: str
    start_by: float
    max_read: float
    message_digests: tuple[str, ...] = ()
    hint_handle_id: str = ""
    produced_by_turn_id: str = ""


class HandleTable:
    """All handles of one engine incarnation."""

    def __init__(self, *, max_branches: int = 4, remembered_ends: int = 1024) -> None:
        self._max_branches = max_branches
        self._remembered = remembered_ends
        self._live: OrderedDict[str, Handle] = OrderedDict()  # by request id, oldest first
        self._by_session: dict[str, dict[str, None]] = {}  # request ids, oldest first
        self._claims: dict[str, str] = {}  # claim id -> request id
        self._spent: OrderedDict[str, None] = OrderedDict()  # claim ids whose handles have ended
        self._ended: OrderedDict[str, State] = OrderedDict()  # by handle id

    def __len__(self) -> int:
        return len(self._live)

    def live(self) -> list[Handle]:
        """Live handles, oldest first."""
        return list(self._live.values())

    def get(self, request_id: str) -> Handle | None:
        """The live handle of a finished request."""
        return self._live.get(request_id)

    def retain(self, handle: Handle, supersedes: Callable[[Proof], bool]) -> list[Handle]:
        """Add a handle; returns the unclaimed handles to free, now RELEASED.

        Those are the older ones of its session whose tokens begin it (``supersedes`` tells
        by proof), and the oldest beyond the limit of branches. One that is claimed follows
        when its claim is returned.
        """
        siblings = [
            old for old in self._of_session(handle.session_key) if old.tenant == handle.tenant
        ]
        covered = [old for old in siblings if supersedes(old.proof)]
        for old in covered:
            if old.state is State.CLAIMED:
                self._live[old.request_id] = replace(old, unwanted=True)
        unclaimed = [old for old in siblings if old.state is State.RETAINED]
        covered = [old for old in unclaimed if old in covered]
        branches = [old for old in unclaimed if old not in covered]
        self._live[handle.request_id] = handle
        self._by_session.setdefault(handle.session_key, {})[handle.request_id] = None
        excess = max(0, len(branches) + 1 - self._max_branches)
        return [self._end(old, State.RELEASED) for old in covered + branches[:excess]]

    def acquire(self, request: ClaimRequest, now: float) -> Handle:
        """Claim the newest handle of the session; the same claim id gets the same grant,
        and none once its handle has ended. A returned claim may be made anew.

        Raises HandleNotFound, HandleClaimed, HandleExpired, LeaseTooShort, TenantMismatch,
        and AmbiguousSession where nothing tells which of several handles is meant: a guess
        would spend that of another conversation or branch.
        """
        if known := self._claims.get(request.claim_id):
            return self._repeated(self._live[known], request, now)
        if request.claim_id in self._spent:
            # An order that comes late: its caller is gone, and would leave the claim to lapse.
            raise HandleClaimed("the claim has ended already")
        handle = self._newest(request)
        if handle.state is State.CLAIMED:
            raise HandleClaimed("another turn holds the claim on the newest handle")
        hold_until = now + request.start_by + request.max_read
        if handle.deadline <= now:
            raise HandleExpired("the lease of the handle has run out")
        if handle.deadline < hold_until:
            raise LeaseTooShort(
                f"{handle.deadline - now:.1f} s of lease are left, the claim needs "
                f"{hold_until - now:.1f} s"
            )
        claim = Claim(request.claim_id, now + request.start_by, hold_until)
        handle = replace(handle, state=State.CLAIMED, claim=claim)
        self._live[handle.request_id] = handle
        self._claims[claim.claim_id] = handle.request_id
        return handle

    def return_claim(self, claim_id: str, now: float) -> Handle:
        """End a claim that is proven unread: the handle is RETAINED again, or RELEASED, to be
        freed, if it was superseded or ordered to be released meanwhile.

        Raises ClaimNotFound; also for a claim whose hold has run out, since the holder may
        be freeing its blocks already.
        """
        request_id = self._claims.get(claim_id)
        handle = self._live.get(request_id) if request_id else None
        if handle is None or handle.claim is None or handle.claim.hold_until <= now:
            raise ClaimNotFound("no such live claim")
        if handle.unwanted:
            return self._end(handle, State.RELEASED)
        handle = replace(handle, state=State.RETAINED, claim=None)
        del self._claims[claim_id]
        self._live[handle.request_id] = handle
        return handle

    def extend(self, request_id: str, deadline: float) -> Handle | None:
        """Every worker has confirmed that it holds the blocks until ``deadline``.

        The handle as it is now; None if that changes nothing: it has ended, it is claimed (a
        claim is never renewed), or it was held that long already.
        """
        handle = self._live.get(request_id)
        if handle is None or handle.state is not State.RETAINED or deadline <= handle.deadline:
            return None
        handle = self._live[request_id] = replace(handle, deadline=deadline)
        return handle

    def release(self, handle_ids: Iterable[str]) -> list[Handle]:
        """End the named handles that are RETAINED; returns them, to be freed. One that is
        CLAIMED follows when its claim is returned."""
        wanted = set(handle_ids)
        named = [handle for handle in self.live() if handle.handle_id in wanted]
        for handle in named:
            if handle.state is State.CLAIMED:
                self._live[handle.request_id] = replace(handle, unwanted=True)
        return [
            self._end(handle, State.RELEASED) for handle in named if handle.state is State.RETAINED
        ]

    def end(self, request_id: str, state: State) -> Handle | None:
        """The worker has seen the blocks go: READ or EXPIRED. None if it had ended before.

        A claim whose blocks expire has LAPSED.
        """
        handle = self._live.get(request_id)
        if handle is None:
            return None
        lapsed = handle.claim is not None and state is State.EXPIRED
        return self._end(handle, State.LAPSED if lapsed else state)

    def advance(self, now: float) -> list[Handle]:
        """End claims whose hold has run out; returns those handles, LAPSED, to be freed."""
        claimed = [self._live[request_id] for request_id in self._claims.values()]
        lapsed = [
            handle
            for handle in claimed
            if handle.claim is not None and handle.claim.hold_until <= now
        ]
        return [self._end(handle, State.LAPSED) for handle in lapsed]

    def _of_session(self, session_key: str) -> list[Handle]:
        return [self._live[request_id] for request_id in self._by_session.get(session_key, ())]

    def _newest(self, request: ClaimRequest) -> Handle:
        of_session = self._of_session(request.session_key)
        matching = [handle for handle in of_session if handle.tenant == request.tenant]
        if turn := request.produced_by_turn_id:
            matching = [handle for handle in matching if handle.turn_id == turn]
        elif digests := request.message_digests:
            matching = self._branch(matching, digests, request.session_key)
        if matching:
            return matching[-1]
        if any(h.tenant != request.tenant for h in of_session):
            raise TenantMismatch("the handle belongs to another tenant")
        if self._ended.get(request.hint_handle_id) is State.EXPIRED:
            raise HandleExpired("the lease of the handle has run out")
        raise HandleNotFound("no handle of this session is retained")

    @staticmethod
    def _branch(handles: list[Handle], digests: tuple[str, ...], session_key: str) -> list[Handle]:
        for digest in digests:
            if found := [handle for handle in handles if handle.message_digest == digest]:
                if digest == session_key and len(found) > 1:
                    raise AmbiguousSession("several conversations have retained these messages")
                return found
        if len(handles) > 1:
            raise AmbiguousSession("no branch of the session has retained these messages")
        return handles  # a history that was rewritten: the proof tells how much still holds

    @staticmethod
    def _repeated(handle: Handle, request: ClaimRequest, now: float) -> Handle:
        if handle.tenant != request.tenant or handle.session_key != request.session_key:
            raise TenantMismatch("the claim id belongs to another session")
        if handle.claim is None or handle.claim.start_by <= now:
            raise HandleClaimed("the claim can no longer be started")
        return handle

    def _end(self, handle: Handle, state: State) -> Handle:
        del self._live[handle.request_id]
        of_session = self._by_session[handle.session_key]
        del of_session[handle.request_id]
        if not of_session:
            del self._by_session[handle.session_key]
        if handle.claim is not None:
            del self._claims[handle.claim.claim_id]
            self._spent[handle.claim.claim_id] = None
        self._ended[handle.handle_id] = state
        for remembered in (self._ended, self._spent):
            while len(remembered) > self._remembered:
                remembered.popitem(last=False)
        return replace(handle, state=state)
