"""One engine incarnation at this agent: its handles, its claims, and the link when there is one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import structlog

from contraflow.agent.batches import batches
from contraflow.agent.claims import ClaimBook, ClaimRecord
from contraflow.agent.codec import (
    Granted,
    Introduction,
    acquire_order,
    denial_error,
    grant_from_proto,
    handle_from_proto,
    release_order,
    renew_order,
    return_order,
)
from contraflow.agent.link import Answer, EngineLink, Event, Reply
from contraflow.agent.mirror import HandleMirror, MirroredHandle, ReleaseCause
from contraflow.agent.publisher import EXPIRY_TOLERANCE
from contraflow.core.errors import (
    ContraflowError,
    EngineIncarnationStale,
    EngineNotAttached,
    EngineUnresponsive,
    Internal,
)
from contraflow.core.fleet import Engine
from contraflow.core.handle import LIVE, ClaimRequest, State
from contraflow.runtime.clock import Clock, happens
from contraflow.v1 import engine_link_service_pb2 as link_pb
from contraflow.v1 import handle_pb2

log = structlog.get_logger()

AnswerT = TypeVar("AnswerT", bound=Answer)

ORDER_SIZE = 500
"""Handles in one order: an engine tells of each before it answers, and its backlog is bounded."""

PullObserver = Callable[[str, handle_pb2.PullReport], None]
"""Gets the name of the outcome and the report."""

HandleObserver = Callable[[MirroredHandle], None]
"""Gets a handle as it is now; with its last state once it has ended."""


class Attachment:
    """What is kept of one incarnation, across its links. Confined to the event loop."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        observe_pull: PullObserver,
        observe_handle: HandleObserver,
    ) -> None:
        self.engine = engine
        self.mirror = HandleMirror()
        self.pulls: Counter[str] = Counter()
        self.changed = asyncio.Event()
        """Set when the engine or its sessions may have changed, until ``take_changes``."""
        self.emptying = False
        """What the engine retains is released, and what it will retain."""
        self._changed_sessions: dict[str, None] = {}  # keys, those that wait longest first
        self._link: EngineLink | None = None
        self._claims = ClaimBook()
        self._clock = clock
        self._observe_pull = observe_pull
        self._observe_handle = observe_handle
        self._drain_ordered = False
        self._drain_recorded = asyncio.Event()
        # By handle id, of open orders, and of claimed handles that end with their claims.
        self._release_causes: dict[str, ReleaseCause] = {}

    @property
    def link(self) -> EngineLink | None:
        """The live link."""
        return self._link

    def linked(self, link: EngineLink, hello: Introduction) -> None:
        """A link begins and brings the whole handle table. An older link ends."""
        if self._link is not None:
            self._link.end(EngineIncarnationStale("a later link has taken over"))
        self._link = link
        self.engine = replace(hello.engine, draining=self.engine.draining)
        before = self.mirror.live()
        self.mirror.replace(hello.handles)
        self._release_causes.clear()
        # How they ended was said when nobody heard it.
        self._tell_lost(one for one in before if self.mirror.get(one.handle_id) is None)
        live = self.mirror.live()
        self._note_sessions([*before, *live])
        for handle in live:
            self._observe_handle(handle)
        claims = [handle.claim_id for handle in live if handle.claim_id]
        for record in self._claims.reconcile(claims):
            self._give_back(record)

    def unlinked(self, link: EngineLink) -> bool:
        """A link has ended; False if a later one had taken over."""
        if self._link is not link:
            return False
        self._link = None
        return True

    def drain(self, draining: bool, *, emptying: bool = False) -> None:
        """Take the engine out of service for new turns, or put it back; outlives its links."""
        self._drain_ordered = True
        self.emptying = draining and emptying
        self._set_draining(draining)

    async def drain_recorded(self, timeout: float) -> bool:
        """Whether the directory knows what was ordered last, or does so within ``timeout``
        seconds. An agent that dies before forgets it."""
        return await happens(self._drain_recorded, self._clock, timeout)

    def recorded(self, engine: Engine) -> None:
        """The directory holds this of the engine."""
        if engine.draining is self.engine.draining:
            self._drain_recorded.set()

    def resume_drain(self) -> None:
        """An earlier agent process had the engine drain; what was ordered here counts more."""
        if not self._drain_ordered:
            self._set_draining(True)

    def lose(self) -> None:
        """The incarnation is gone for good, and its handles with it."""
        lost = self.mirror.live()
        self.mirror.replace([])
        self._note_sessions(lost)
        self._tell_lost(lost)

    def take_changes(self) -> Iterable[str]:
        """Keys of the sessions whose handles may have changed since the last call."""
        taken, self._changed_sessions = self._changed_sessions, {}
        self.changed.clear()
        return taken

    async def acquire(self, request: ClaimRequest, timeout: float) -> Granted:
        """Ask the engine for a claim. Raises its denial, EngineUnresponsive after ``timeout``
        seconds, or EngineNotAttached.

        Whoever leaves before the answer, by timeout or cancellation, leaves the claim to be
        given back.
        """
        sent_at = self._clock.now()
        record = self._claims.open(request, sent_at)
        record.waiting += 1
        try:
            reply = self._live_link().call(lambda call_id: acquire_order(call_id, request))
            record.in_flight += 1
            reply.add_done_callback(partial(self._acquired, record))
            granted = self._granted(await _within(timeout, reply, link_pb.AcquireResult), sent_at)
            record.delivered = True
            return granted
        finally:
            record.waiting -= 1
            self._settle(record)

    async def return_claim(self, claim_id: str, timeout: float) -> None:
        """Give a claim back unread. Raises ClaimNotFound, EngineUnresponsive, EngineNotAttached."""
        self._claims.proven_unread(claim_id)
        reply = self._live_link().call(lambda call_id: return_order(call_id, claim_id))
        result = await _within(timeout, reply, link_pb.ReturnResult)
        self._claims.ended(claim_id)
        if result.HasField("denial"):
            raise denial_error(result.denial)

    async def release(
        self, handle_ids: Sequence[str], timeout: float | None, cause: ReleaseCause
    ) -> list[str]:
        """Free retained handles, ORDER_SIZE at a time; returns those that will be free. Claimed
        ones end with their claims.

        Raises EngineUnresponsive after ``timeout`` seconds, EngineNotAttached; some may be free
        by then.
        """
        over_at = None if timeout is None else self._clock.now() + timeout
        released: list[str] = []
        self._release_causes.update(dict.fromkeys(handle_ids, cause))
        try:
            for batch in batches(handle_ids, ORDER_SIZE):
                left = None if over_at is None else over_at - self._clock.now()
                reply = self._live_link().call(partial(release_order, handle_ids=batch))
                result = await _within(left, reply, link_pb.ReleaseResult)
                released += result.handle_ids
        finally:
            for handle_id in handle_ids:
                handle = self.mirror.get(handle_id)
                if handle is None or not handle.claim_id:
                    self._release_causes.pop(handle_id, None)
        return released

    async def renew(self, handle_ids: Sequence[str], ttl: float) -> list[str]:
        """Have retained handles, ORDER_SIZE at most, held for ``ttl`` seconds; returns those that
        are, once that is settled, at the latest when their leases have run out.

        Raises EngineUnresponsive, EngineNotAttached.
        """
        reply = self._live_link().call(lambda call_id: renew_order(call_id, handle_ids, ttl))
        result = await _within(None, reply, link_pb.RenewResult)
        return list(result.handle_ids)

    def on_event(self, event: Event) -> None:
        """What the engine says unasked."""
        if isinstance(event, link_pb.HandleUpdate):
            handle = handle_from_proto(event.handle, self._clock.now())
            if handle is not None and handle.engine_id == self.engine.engine_id:
                self._update(handle)
            return
        outcome = _outcome_name(event.outcome)
        self.pulls[outcome] += 1
        self._observe_pull(outcome, event)
        log.info(
            "pull_reported",
            engine_id=self.engine.engine_id,
            turn_id=event.turn_id,
            outcome=outcome,
            pulled_tokens=event.pulled_tokens,
        )

    def expire(self) -> None:
        """Drop handles whose lease has run out."""
        for handle in self.mirror.expire(self._clock.now()):
            self._claims.ended(handle.claim_id)
            self._release_causes.pop(handle.handle_id, None)
            state = State.LAPSED if handle.state is State.CLAIMED else State.EXPIRED
            self._note_sessions([handle])
            self._observe_handle(replace(handle, state=state, claim_id=""))

    def _live_link(self) -> EngineLink:
        if self._link is None:
            raise EngineNotAttached("the engine has no live link to this agent")
        return self._link

    def _update(self, handle: MirroredHandle) -> None:
        before = self.mirror.apply(handle)
        if before is not None and before.claim_id and before.claim_id != handle.claim_id:
            self._claims.ended(before.claim_id)
        if handle.state is State.RELEASED:
            handle = replace(handle, release_cause=self._release_cause(handle))
        if handle.state not in LIVE:
            self._release_causes.pop(handle.handle_id, None)
        self._note_sessions([handle] if before is None else [before, handle])
        if _differ(before, handle):
            self._observe_handle(handle)

    def _note_sessions(self, changed: Iterable[MirroredHandle]) -> None:
        for handle in changed:
            self._changed_sessions[handle.session_key] = None
        self.changed.set()

    def _release_cause(self, handle: MirroredHandle) -> ReleaseCause:
        if cause := self._release_causes.get(handle.handle_id):
            return cause
        # The engine's own doing: it tells of a successor before it frees what that covers.
        successors = self.mirror.of_session(handle.session_key)
        superseded = any(other.tenant == handle.tenant for other in successors)
        return ReleaseCause.SUPERSEDED if superseded else ReleaseCause.ROOM

    def _set_draining(self, draining: bool) -> None:
        if draining is not self.engine.draining:
            self._drain_recorded.clear()
        self.engine = replace(self.engine, draining=draining)
        self.changed.set()

    def _tell_lost(self, handles: Iterable[MirroredHandle]) -> None:
        for handle in handles:
            self._observe_handle(replace(handle, state=State.LOST, claim_id=""))

    def _granted(self, result: link_pb.AcquireResult, sent_at: float) -> Granted:
        if result.HasField("denial"):
            raise denial_error(result.denial)
        now = self._clock.now()
        granted = grant_from_proto(result.grant, sent_at, now)
        if granted.start_by <= 0:
            raise EngineUnresponsive("the engine answered when the claim was over")
        return granted

    def _acquired(self, record: ClaimRecord, reply: Reply) -> None:
        # Runs before whoever awaits the reply: it was added first.
        record.in_flight -= 1
        if reply.exception() is not None or _is_grant(reply.result()):
            record.possible = True
        self._settle(record)

    def _settle(self, record: ClaimRecord) -> None:
        if not record.abandoned:
            return
        if record.possible:
            self._give_back(record)
        else:
            self._claims.discard(record)

    def _give_back(self, record: ClaimRecord) -> None:
        # Without a link the record stays: the next Hello tells whether the claim lives.
        if self._link is None:
            return
        try:
            reply = self._link.call(lambda call_id: return_order(call_id, record.claim_id))
        except ContraflowError as error:
            log.warning("claim_not_returned", claim_id=record.claim_id, reason=error.reason)
            return
        log.info("late_claim_returned", claim_id=record.claim_id)
        reply.add_done_callback(partial(self._given_back, record))

    def _given_back(self, record: ClaimRecord, reply: Reply) -> None:
        if reply.exception() is None:
            self._claims.discard(record)


async def _within(timeout: float | None, reply: Reply, kind: type[AnswerT]) -> AnswerT:
    await asyncio.wait((reply,), timeout=timeout)
    if not reply.done():
        raise EngineUnresponsive("the engine did not answer in time")
    answer = reply.result()
    if not isinstance(answer, kind):
        raise Internal("the engine gave another answer than the one asked for")
    return answer


def _differ(before: MirroredHandle | None, handle: MirroredHandle) -> bool:
    if before is None:
        return handle.state in LIVE  # the end of one that is not known was told before
    renewed = handle.expires_at > before.expires_at + EXPIRY_TOLERANCE
    return renewed or (before.state, before.claim_id) != (handle.state, handle.claim_id)


def _is_grant(answer: Answer) -> bool:
    return isinstance(answer, link_pb.AcquireResult) and answer.HasField("grant")


def _outcome_name(number: int) -> str:
    if number not in handle_pb2.PullOutcome.values():
        return f"UNKNOWN_{number}"
    return handle_pb2.PullOutcome.Name(number).removeprefix("PULL_OUTCOME_")
