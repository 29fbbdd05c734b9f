"""The owner's side: the handle table, shared by the scheduler thread and the link thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from contraflow.core.chain import Proof
from contraflow.core.handle import ClaimRequest, Handle, HandleTable, State
from contraflow_connector.guard import guarded
from contraflow_connector.renewals import Answer, Renewals

Sink = Callable[[Handle], None]
"""Told of every change, under the table's lock: it must not wait."""


class Retained:
    """A HandleTable behind one short lock, and what it owes the worker half.

    ``clock`` is the clock of the handles' deadlines, in seconds; ``ranks`` workers hold the
    blocks of each request.
    """

    def __init__(self, clock: Callable[[], float], ranks: int = 1) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._table = HandleTable()
        self._sink: Sink | None = None
        self._handed_over: set[str] = set()  # request ids whose blocks another engine may read
        self._releases: list[str] = []
        self._freeing: dict[str, int] = {}  # request id -> blocks that the workers still hold
        self._renewals = Renewals(ranks)
        self._seen: dict[str, set[State]] = {}  # request id -> what the ranks reported

    def subscribe(self, sink: Sink) -> list[Handle]:
        """All live handles now, and every later change to ``sink``, with no gap between."""
        with self._lock:
            self._sink = sink
            return self._table.live()

    def unsubscribe(self) -> None:
        """Changes and answers go nowhere until the next ``subscribe``."""
        with self._lock:
            self._sink = None
            self._renewals.forget_orders()

    def retain(self, handle: Handle, supersedes: Callable[[Proof], bool]) -> None:
        """Add a handle; older ones that it supersedes are freed."""
        with self._lock:
            ended = self._table.retain(handle, supersedes)
            self._tell(handle)
            self._free(ended)

    def release_unlisted(self, request_id: str) -> None:
        """Free retained blocks that never became a handle, or only half."""
        with self._lock:
            if ended := self._table.end(request_id, State.RELEASED):
                self._renewals.end(request_id)
                self._tell(ended)
            self._releases.append(request_id)

    def hand_over(self, request_id: str) -> None:
        """A request's blocks wait for a decode engine to read them."""
        with self._lock:
            self._handed_over.add(request_id)

    def handed_over(self, request_ids: Iterable[str]) -> set[str]:
        """Which of them were."""
        with self._lock:
            return self._handed_over.intersection(request_ids)

    def acquire(self, request: ClaimRequest) -> Handle:
        """As HandleTable.acquire."""
        with self._lock:
            handle = self._table.acquire(request, self.clock())
            self._tell(handle)
            return handle

    def return_claim(self, claim_id: str) -> None:
        """As HandleTable.return_claim."""
        with self._lock:
            handle = self._table.return_claim(claim_id, self.clock())
            if handle.state is State.RETAINED:
                self._tell(handle)
            else:
                self._free([handle])

    def release(self, handle_ids: Iterable[str]) -> list[str]:
        """Free the named handles that are unclaimed; returns their ids. Claimed ones are freed
        if their claims are returned.

        Blocks that were handed over go by the same form of id. Nobody may name them while a
        decode engine could still read.
        """
        named = set(handle_ids)
        with self._lock:
            ended = self._table.release(named)
            self._free(ended)
            untaken = [one for one in named if one.partition("/")[2] in self._handed_over]
            for one in untaken:
                request_id = one.partition("/")[2]
                self._handed_over.discard(request_id)
                self._releases.append(request_id)
            return [*(handle.handle_id for handle in ended), *untaken]

    def renew(self, handle_ids: Iterable[str], ttl: float, answer: Answer) -> None:
        """Hold the named handles that are unclaimed for ``ttl`` seconds from now.

        A lease changes only once every rank has confirmed it, and ``answer`` is called when
        that is settled for all of them; never, if ``unsubscribe`` is called before.
        """
        wanted = set(handle_ids)
        with self._lock:
            deadline = self.clock() + ttl
            named = [
                handle
                for handle in self._table.live()
                if handle.handle_id in wanted and handle.state is State.RETAINED
            ]
            self._renewals.order(
                {one.request_id: one.handle_id for one in named if one.deadline < deadline},
                deadline,
                [one.handle_id for one in named if one.deadline >= deadline],
                answer,
            )

    def make_room(self, blocks: int) -> None:
        """Free unclaimed handles, oldest first, until ``blocks`` blocks are about to be free."""
        with self._lock:
            missing = blocks - sum(self._freeing.values())
            chosen = []
            for handle in self._table.live():
                if missing <= 0:
                    break
                if handle.state is State.RETAINED:
                    chosen.append(handle.handle_id)
                    missing -= handle.num_blocks
            if chosen:
                self._free(self._table.release(chosen))

    def step(self) -> tuple[str, ...]:
        """Once per engine step: request ids whose blocks the workers shall free now."""
        with self._lock:
            if len(self._table):
                self._free(self._table.advance(self.clock()))
                self._free(self._half_renewed())
            releases, self._releases = self._releases, []
            return tuple(releases)

    def renewals(self) -> dict[str, float]:
        """Once per engine step, after ``step``: until when the workers shall hold the blocks of
        which requests from now on."""
        with self._lock:
            return self._renewals.take()

    def confirmed(self, request_id: str, deadline: float) -> None:
        """A rank holds a request's blocks until ``deadline``."""
        with self._lock:
            if not self._renewals.confirm(request_id, deadline):
                return
            if renewed := self._table.extend(request_id, deadline):
                self._tell(renewed)
            self._renewals.settle(request_id, renewed=renewed is not None)

    def seen(self, request_id: str, state: State) -> None:
        """A rank reports how it came to free a request's blocks."""
        self._seen.setdefault(request_id, set()).add(state)

    def finished(self, request_ids: Iterable[str]) -> None:
        """Every rank has let go of these requests' blocks.

        READ only if no rank saw the lease expire; without any report, EXPIRED.
        """
        for request_id in request_ids:
            states = self._seen.pop(request_id, set())
            state = State.READ if states == {State.READ} else State.EXPIRED
            with self._lock:
                self._freeing.pop(request_id, None)
                self._handed_over.discard(request_id)
                self._renewals.end(request_id)
                if ended := self._table.end(request_id, state):
                    self._tell(ended)

    def _half_renewed(self) -> list[Handle]:
        # The lease of the table has run out, yet some rank may hold the blocks for longer.
        now = self.clock()
        over = [
            handle.request_id
            for request_id in self._renewals.unconfirmed()
            if (handle := self._table.get(request_id)) and handle.deadline <= now
        ]
        ended = [self._table.end(request_id, State.EXPIRED) for request_id in over]
        return [handle for handle in ended if handle is not None]

    def _free(self, ended: list[Handle]) -> None:
        for handle in ended:
            self._renewals.end(handle.request_id)
            self._releases.append(handle.request_id)
            self._freeing[handle.request_id] = handle.num_blocks
            self._tell(handle)

    @guarded(None)  # A change that is made must not look like one that failed.
    def _tell(self, handle: Handle) -> None:
        if self._sink is not None:
            self._sink(handle)
