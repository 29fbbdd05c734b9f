"""Leases on their way to several ranks: the table never promises more than every rank holds, and
each order is answered once."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.support.connector_handles import ManualTime, a_handle, ask

from contraflow.core.errors import ContraflowError
from contraflow.core.handle import LIVE, Handle, State
from contraflow_connector.retained import Retained

RANKS = 2
TTL = 480.0


workers = st.sets(st.integers(0, RANKS - 1))


class Order:
    """An order to renew, and the answers to it."""

    def __init__(self, handle_ids: list[str]) -> None:
        self.handle_ids = handle_ids
        self.answers: list[list[str]] = []


class Ranks(RuleBasedStateMachine):
    """Ranks do what a step tells them, each when it comes to it, and free what runs out."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualTime()
        self.retained = Retained(self.clock, RANKS)
        self.told: dict[str, list[State]] = {}
        self.retained.subscribe(self.hear)
        self.table: dict[str, Handle] = {}
        self.orders: list[Order] = []
        self.holds: list[dict[str, float]] = [{} for _ in range(RANKS)]
        self.steps: list[list[tuple[tuple[str, ...], dict[str, float]]]] = [
            [] for _ in range(RANKS)
        ]
        self.reports: list[list[tuple[str, float]]] = [[] for _ in range(RANKS)]
        self.freed: dict[str, set[int]] = {}
        self.claims = 0

    def hear(self, handle: Handle) -> None:
        states = self.told.setdefault(handle.request_id, [])
        assert not states or states[-1] in LIVE
        states.append(handle.state)
        self.table[handle.request_id] = handle
        if handle.state not in LIVE:
            del self.table[handle.request_id]

    @rule(session=st.sampled_from("012"))
    def retain(self, session: str) -> None:
        request_id = f"r{len(self.told)}"
        deadline = self.clock() + TTL
        for rank in self.holds:
            rank[request_id] = deadline
        self.retained.retain(
            a_handle(request_id, session=session * 32, deadline=deadline, retained_at=self.clock()),
            lambda _: False,
        )

    @rule(
        skipped=st.sets(st.integers(0, 9), max_size=2),
        ttl=st.sampled_from([2 * TTL, 1.0]),
        working=workers,
        reporting=st.booleans(),
    )
    def renew(self, skipped: set[int], ttl: float, working: set[int], reporting: bool) -> None:
        """Most of the handles that live, and two that do not."""
        live = [f"e/{one}" for index, one in enumerate(self.table) if index not in skipped]
        order = Order([*live, "e/gone", *(f"e/{one}" for one in list(self.told)[:1])])
        self.orders.append(order)
        self.retained.renew(order.handle_ids, ttl, order.answers.append)
        self.go_on(working, reporting)

    @rule(session=st.sampled_from("012"), start_by=st.sampled_from([1.0, 60.0, TTL]))
    def acquire(self, session: str, start_by: float) -> None:
        self.claims += 1
        request = ask(f"c{self.claims}", session_key=session * 32, start_by=start_by)
        try:
            handle = self.retained.acquire(request)
        except ContraflowError:
            return
        assert handle.claim is not None
        until = handle.claim.hold_until
        assert all(rank.get(handle.request_id, 0.0) >= until for rank in self.holds)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(1, self.claims))
        try:
            self.retained.return_claim(f"c{number}")
        except ContraflowError:
            return

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if self.told:
            request_id = data.draw(st.sampled_from(list(self.told)))
            self.retained.release([f"e/{request_id}"])

    @rule(seconds=st.sampled_from([0.5, 60.0, TTL / 2, TTL]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(working=workers, reporting=st.booleans())
    def step_and_work(self, working: set[int], reporting: bool) -> None:
        self.go_on(working, reporting)

    def go_on(self, working: set[int], reporting: bool) -> None:
        """A step, which some ranks carry out at once, and perhaps report."""
        self.step()
        for rank in working:
            while self.steps[rank]:
                self.work(rank)
            if reporting:
                self.report(rank)

    def step(self) -> None:
        """What the ranks are told."""
        message = self.retained.step(), self.retained.renewals()
        for told in self.steps:
            told.append(message)

    @rule(rank=st.integers(0, RANKS - 1))
    def work(self, rank: int) -> None:
        """A rank carries out its next step, and frees what has run out."""
        held = self.holds[rank]
        if self.steps[rank]:
            releases, renewals = self.steps[rank].pop(0)
            for request_id in releases:
                self._let_go(rank, request_id)
            for request_id, deadline in renewals.items():
                if request_id in held:
                    held[request_id] = max(held[request_id], deadline)
                    self.reports[rank].append((request_id, deadline))
        for request_id in [one for one, deadline in held.items() if deadline <= self.clock()]:
            self.retained.seen(request_id, State.EXPIRED)
            self._let_go(rank, request_id)

    def _let_go(self, rank: int, request_id: str) -> None:
        if self.holds[rank].pop(request_id, None) is not None:
            self.freed.setdefault(request_id, set()).add(rank)

    @rule(rank=st.integers(0, RANKS - 1))
    def report(self, rank: int) -> None:
        """A rank's confirmations arrive, and what all have let go is finished."""
        for request_id, deadline in self.reports[rank]:
            self.retained.confirmed(request_id, deadline)
        self.reports[rank].clear()
        gone = [one for one, ranks in self.freed.items() if len(ranks) == RANKS]
        for request_id in gone:
            del self.freed[request_id]
        self.retained.finished(gone)

    @invariant()
    def no_lease_is_longer_than_that_of_any_rank_that_holds(self) -> None:
        for request_id, handle in self.table.items():
            for rank in self.holds:
                # Whoever has let go of one that lives has seen its lease run out.
                assert handle.deadline <= rank.get(request_id, self.clock())

    @invariant()
    def answers_come_once_and_name_what_was_ordered(self) -> None:
        for order in self.orders:
            assert len(order.answers) <= 1
            for ids in order.answers:
                assert set(ids) <= set(order.handle_ids)

    def teardown(self) -> None:
        """In the end nothing is held, and every order has its answer."""
        self.clock.now += 10 * TTL
        for _ in range(2 * max(map(len, self.steps), default=0) + 4):
            self.step()
            for rank in range(RANKS):
                while self.steps[rank]:
                    self.work(rank)
                self.work(rank)
                self.report(rank)
            self.clock.now += 10 * TTL
        assert not any(self.holds)
        assert not self.table
        assert all(states[-1] not in LIVE for states in self.told.values())
        assert [len(order.answers) for order in self.orders] == [1] * len(self.orders)


TestRanks = Ranks.TestCase
TestRanks.settings = settings(deadline=None, stateful_step_count=50)
