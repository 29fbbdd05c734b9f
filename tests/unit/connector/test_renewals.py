"""A lease is renewed only once every rank has confirmed it."""

from __future__ import annotations

from contextlib import suppress

import hypothesis.strategies as st
import pytest
from hypothesis import given
from tests.support.connector_handles import ManualTime, a_handle, ask

from contraflow.core.errors import ContraflowError, HandleExpired, LeaseTooShort
from contraflow.core.handle import Handle, State
from contraflow_connector.events import WorkerEvents
from contraflow_connector.retained import Retained

TTL = 480.0


def nothing(_: object) -> bool:
    return False


class World:
    """Two ranks, and one handle with 480 s to live of which 300 are over."""

    def __init__(self) -> None:
        self.clock = ManualTime()
        self.retained = Retained(self.clock, ranks=2)
        self.retained.retain(a_handle("r"), nothing)
        self.answers: list[list[str]] = []
        self.heard: list[Handle] = []
        self.retained.subscribe(self.heard.append)
        self.clock.now += 300

    def renew(self, *handle_ids: str, ttl: float = TTL) -> None:
        self.retained.renew(handle_ids or ("e/r",), ttl, self.answers.append)

    def step(self) -> dict[str, float]:
        """An engine step: what the workers are told to hold, and until when."""
        assert self.retained.step() == ()
        return self.retained.renewals()

    def deadline(self, request_id: str = "r") -> float:
        (found,) = [one for one in self.retained._table.live() if one.request_id == request_id]
        return found.deadline


def test_a_lease_changes_once_all_ranks_have_confirmed_it() -> None:
    world = World()
    world.renew()
    assert world.step() == {"r": 1780.0}
    assert world.step() == {}
    world.retained.confirmed("r", 1780.0)
    assert (world.deadline(), world.answers, world.heard) == (1480.0, [], [])
    world.retained.confirmed("r", 1780.0)
    assert world.deadline() == 1780.0
    assert [(one.state, one.deadline) for one in world.heard] == [(State.RETAINED, 1780.0)]
    assert world.answers == [["e/r"]]


def test_a_claim_counts_on_confirmed_deadlines_only() -> None:
    world = World()
    world.clock.now = 1420.0
    world.renew()
    (deadline,) = world.step().values()
    world.retained.confirmed("r", deadline)
    with pytest.raises(LeaseTooShort):
        world.retained.acquire(ask("c1"))
    world.retained.confirmed("r", deadline)
    assert world.retained.acquire(ask("c1")).deadline == deadline


@pytest.mark.parametrize("claimed_when", ["ordered", "sent", "half confirmed"])
def test_a_claim_made_while_an_extension_is_under_way_stays_as_it_was_granted(
    claimed_when: str,
) -> None:
    world = World()
    world.renew()
    if claimed_when != "ordered":
        world.step()
    if claimed_when == "half confirmed":
        world.retained.confirmed("r", 1780.0)
    claim = world.retained.acquire(ask("c1")).claim
    assert claim is not None
    assert claim.hold_until == 1370.0
    world.step()
    for _ in range(2):
        world.retained.confirmed("r", 1780.0)
    assert world.deadline() == 1480.0
    world.clock.now = 1370.0
    assert world.retained.step() == ("r",)
    assert world.answers == [[]]
    assert world.heard[-1].state is State.LAPSED


def test_a_claim_that_is_returned_after_the_confirmations_leaves_a_handle_to_renew() -> None:
    world = World()
    world.renew()
    world.step()
    world.retained.acquire(ask("c1"))
    for _ in range(2):
        world.retained.confirmed("r", 1780.0)
    assert world.answers == [[]]
    world.retained.return_claim("c1")
    assert world.deadline() == 1480.0
    world.clock.now += 10
    world.renew()
    assert world.step() == {"r": 1790.0}
    for _ in range(2):
        world.retained.confirmed("r", 1790.0)
    assert (world.deadline(), world.answers) == (1790.0, [[], ["e/r"]])


def test_what_one_rank_dropped_ends_with_its_old_lease_and_is_freed_on_the_others() -> None:
    world = World()
    world.renew()
    world.step()
    world.retained.confirmed("r", 1780.0)
    world.clock.now = 1479.0
    assert world.retained.step() == ()
    assert world.answers == []
    world.clock.now = 1480.0
    with pytest.raises(HandleExpired):
        world.retained.acquire(ask("c1"))
    assert world.retained.step() == ("r",)
    assert world.heard[-1].state is State.EXPIRED
    assert world.answers == [[]]
    world.retained.confirmed("r", 1780.0)
    world.retained.finished(["r"])
    assert world.retained.step() == ()
    assert len(world.heard) == 1


@pytest.mark.parametrize("end", ["released", "read", "superseded"])
def test_confirmations_for_what_has_ended_come_to_nothing(end: str) -> None:
    world = World()
    world.renew()
    world.step()
    world.retained.confirmed("r", 1780.0)
    if end == "released":
        world.retained.release(["e/r"])
    elif end == "read":
        world.retained.seen("r", State.READ)
        world.retained.finished(["r"])
    else:
        world.retained.retain(a_handle("r2"), lambda _: True)
    assert world.answers == [[]]
    ended = len(world.heard)
    world.retained.confirmed("r", 1780.0)
    assert len(world.heard) == ended
    assert world.answers == [[]]


def test_what_is_freed_before_the_next_step_is_never_extended() -> None:
    world = World()
    world.renew()
    world.retained.release(["e/r"])
    assert world.retained.step() == ("r",)
    assert world.retained.renewals() == {}


def test_confirmations_of_an_earlier_order_do_not_count_for_the_later_one() -> None:
    world = World()
    world.renew()
    world.step()
    world.retained.confirmed("r", 1780.0)
    world.clock.now += 5
    world.renew()
    assert world.answers == [[]]
    assert world.step() == {"r": 1785.0}
    world.retained.confirmed("r", 1780.0)
    world.retained.confirmed("r", 1785.0)
    assert world.deadline() == 1480.0
    world.retained.confirmed("r", 1785.0)
    assert (world.deadline(), world.answers) == (1785.0, [[], ["e/r"]])


def test_a_rank_that_confirms_two_orders_of_one_instant_does_not_count_for_another() -> None:
    world = World()
    world.renew()
    (first,) = world.step().values()
    world.renew()
    (second,) = world.step().values()
    # The other rank had let go before the first was ordered.
    world.retained.confirmed("r", first)
    world.retained.confirmed("r", second)
    assert (world.deadline(), world.answers, world.heard) == (1480.0, [[]], [])


def test_an_order_for_less_than_workers_may_hold_already_is_for_what_they_hold() -> None:
    world = World()
    world.renew(ttl=7200.0)
    (held,) = world.step().values()
    world.retained.acquire(ask("c1"))
    for _ in range(2):
        world.retained.confirmed("r", held)
    world.retained.return_claim("c1")
    assert world.deadline() == 1480.0  # a claim is never renewed
    world.renew()
    (ordered,) = world.step().values()
    assert ordered >= held
    for _ in range(2):
        world.retained.confirmed("r", ordered)
    assert world.deadline() == ordered
    assert world.answers == [[], ["e/r"]]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("pass"), st.sampled_from([1, 60, 300])),
            st.tuples(st.just("order"), st.sampled_from([200, 480, 2000])),
            st.tuples(st.just("tell"), st.sampled_from([1, 2])),  # so many of the workers
            st.tuples(st.just("claim"), st.just(0)),
            st.tuples(st.just("return"), st.just(0)),
        ),
        max_size=12,
    )
)
def test_every_rank_holds_what_the_table_says_and_none_holds_it_for_longer_unasked(
    steps: list[tuple[str, int]],
) -> None:
    world = World()
    holds = [1480.0, 1480.0]
    for what, number in steps:
        if what == "pass":
            world.clock.now += number
        elif what == "order":
            world.renew(ttl=number)
        elif what == "claim":
            with suppress(ContraflowError):
                world.retained.acquire(ask("c1"))
        elif what == "return":
            with suppress(ContraflowError):
                world.retained.return_claim("c1")
        else:
            if "r" in world.retained.step():
                return
            for request_id, deadline in world.retained.renewals().items():
                for rank in range(number):
                    if holds[rank] > world.clock.now:
                        holds[rank] = max(holds[rank], deadline)
                        world.retained.confirmed(request_id, deadline)
        assert world.deadline() <= min(holds)
    # The lease of the table, and of any claim, runs out: who holds blocks is told to free them.
    world.clock.now = max(world.deadline(), world.clock.now) + 70
    if max(holds) > world.clock.now:
        assert "r" in world.retained.step()


def test_an_order_is_answered_when_each_of_its_handles_is_settled() -> None:
    world = World()
    for name in ("long", "claimed", "gone"):
        session = name[0] * 32
        deadline = 9999.0 if name == "long" else 1480.0
        world.retained.retain(a_handle(name, session=session, deadline=deadline), nothing)
    world.retained.acquire(ask("c1", session_key="c" * 32))
    world.renew("e/r", "e/long", "e/claimed", "e/gone", "e/unknown")
    assert world.step() == {"r": 1780.0, "gone": 1780.0}
    world.retained.release(["e/gone"])
    for _ in range(2):
        assert world.answers == []
        world.retained.confirmed("r", 1780.0)
    assert [sorted(one) for one in world.answers] == [["e/long", "e/r"]]
    assert world.deadline("long") == 9999.0


def test_an_order_that_changes_nothing_is_answered_at_once() -> None:
    world = World()
    world.renew("e/unknown")
    world.renew(ttl=10.0)
    assert world.answers == [[], ["e/r"]]
    assert world.step() == {}


def test_an_order_of_a_link_that_has_ended_is_not_answered_but_carried_out() -> None:
    world = World()
    world.renew()
    world.step()
    world.retained.unsubscribe()
    for _ in range(2):
        world.retained.confirmed("r", 1780.0)
    assert (world.deadline(), world.answers) == (1780.0, [])


def test_an_answer_that_fails_does_not_undo_the_renewal() -> None:
    world = World()

    def fails(_: list[str]) -> None:
        raise ZeroDivisionError

    world.retained.renew(["e/r"], TTL, fails)
    world.step()
    for _ in range(2):
        world.retained.confirmed("r", 1780.0)
    assert world.deadline() == 1780.0
    assert world.heard[-1].deadline == 1780.0


def test_events_of_ranks_add_up() -> None:
    one = WorkerEvents(renewed=[("r", 1780.0)])
    assert one.merged(WorkerEvents(renewed=[("r", 1780.0)])).renewed == [("r", 1780.0)] * 2
    assert one
