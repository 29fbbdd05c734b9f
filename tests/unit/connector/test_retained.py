"""The owner's side: one claim whoever asks, and how a handle came to its end."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.connector_handles import ManualTime, a_handle, ask

from contraflow.core.errors import ClaimNotFound, ContraflowError, HandleClaimed
from contraflow.core.handle import Handle, State
from contraflow_connector.events import Transfer, WorkerEvents
from contraflow_connector.retained import Retained

THREADS = 8


def nothing(_: object) -> bool:
    return False


def test_scenario_04_of_concurrent_claims_exactly_one_is_granted() -> None:
    for _ in range(50):
        retained = Retained(ManualTime())
        retained.retain(a_handle("r"), nothing)
        start = threading.Barrier(THREADS)

        def claim(
            number: int, retained: Retained = retained, start: threading.Barrier = start
        ) -> Handle | ContraflowError:
            start.wait()
            try:
                return retained.acquire(ask(f"c{number}"))
            except ContraflowError as error:
                return error

        with ThreadPoolExecutor(THREADS) as pool:
            outcomes = list(pool.map(claim, range(THREADS)))
        granted = [outcome for outcome in outcomes if isinstance(outcome, Handle)]
        denied = [outcome for outcome in outcomes if isinstance(outcome, HandleClaimed)]
        assert (len(granted), len(denied)) == (1, THREADS - 1)


def test_a_release_and_a_claim_at_once_end_in_one_of_both() -> None:
    for _ in range(50):
        retained = Retained(ManualTime())
        retained.retain(a_handle("r"), nothing)
        start = threading.Barrier(2)

        def claim(retained: Retained = retained, start: threading.Barrier = start) -> bool:
            start.wait()
            try:
                retained.acquire(ask("c"))
            except ContraflowError:
                return False
            return True

        def release(retained: Retained = retained, start: threading.Barrier = start) -> bool:
            start.wait()
            return bool(retained.release(["e/r"]))

        with ThreadPoolExecutor(2) as pool:
            claimed, released = pool.submit(claim), pool.submit(release)
        assert claimed.result() != released.result()
        assert retained.step() == (("r",) if released.result() else ())


def test_scenario_24_room_is_made_of_the_oldest_unclaimed_handles() -> None:
    retained = Retained(ManualTime())
    for number in range(5):
        session = f"{number}" * 32
        retained.retain(a_handle(f"r{number}", session=session, num_blocks=3), nothing)
    retained.acquire(ask("c", session_key="0" * 32))
    retained.make_room(0)
    assert retained.step() == ()
    retained.make_room(4)
    assert retained.step() == ("r1", "r2")
    # What is on its way counts, until the workers have let go.
    retained.make_room(6)
    assert retained.step() == ()
    retained.finished(["r1", "r2"])
    retained.make_room(100)
    assert retained.step() == ("r3", "r4")


def test_a_returned_claim_frees_what_was_superseded_meanwhile() -> None:
    retained = Retained(ManualTime())
    retained.retain(a_handle("r1"), nothing)
    retained.acquire(ask("c1"))
    retained.retain(a_handle("r2"), lambda _: True)
    assert retained.step() == ()
    retained.return_claim("c1")
    assert retained.step() == ("r1",)


def test_a_returned_claim_frees_what_was_to_be_released_meanwhile() -> None:
    retained = Retained(ManualTime())
    retained.retain(a_handle("r1"), nothing)
    handle = retained.acquire(ask("c1"))
    assert retained.release([handle.handle_id]) == []
    assert retained.step() == ()
    retained.return_claim("c1")
    assert retained.step() == ("r1",)


def test_blocks_that_were_handed_over_and_not_taken_are_freed_once() -> None:
    retained = Retained(ManualTime())
    retained.hand_over("r1")
    retained.hand_over("r2")
    retained.finished(["r2"])
    assert retained.release(["p/r1", "p/r2", "p/r3"]) == ["p/r1"]
    assert retained.step() == ("r1",)
    assert retained.release(["p/r1"]) == []
    assert retained.step() == ()


def test_a_subscriber_misses_nothing_and_hears_nothing_twice() -> None:
    clock = ManualTime()
    retained = Retained(clock)
    retained.retain(a_handle("r1"), nothing)
    heard: list[tuple[str, State]] = []
    table = retained.subscribe(lambda handle: heard.append((handle.request_id, handle.state)))
    assert [handle.request_id for handle in table] == ["r1"]
    retained.retain(a_handle("r2"), lambda _: True)
    retained.acquire(ask("c1"))
    retained.return_claim("c1")
    retained.acquire(ask("c2"))
    clock.now += 70
    assert retained.step() == ("r1", "r2")
    retained.unsubscribe()
    retained.retain(a_handle("r3"), nothing)
    assert heard == [
        ("r2", State.RETAINED),
        ("r1", State.RELEASED),
        ("r2", State.CLAIMED),
        ("r2", State.RETAINED),
        ("r2", State.CLAIMED),
        ("r2", State.LAPSED),
    ]


@pytest.mark.parametrize(
    ("seen", "claimed", "end"),
    [
        ([State.READ], True, State.READ),
        ([State.READ, State.READ], True, State.READ),
        ([State.READ, State.EXPIRED], False, State.EXPIRED),
        ([State.EXPIRED, State.READ], False, State.EXPIRED),
        ([State.READ, State.EXPIRED], True, State.LAPSED),
        ([State.EXPIRED], False, State.EXPIRED),
        ([State.RELEASED], False, State.EXPIRED),
        ([], False, State.EXPIRED),
    ],
)
def test_a_handle_is_read_only_if_every_rank_saw_it_read(
    seen: list[State], claimed: bool, end: State
) -> None:
    retained = Retained(ManualTime())
    retained.retain(a_handle("r"), nothing)
    if claimed:
        retained.acquire(ask("c"))
    heard: list[State] = []
    retained.subscribe(lambda handle: heard.append(handle.state))
    for state in seen:
        retained.seen("r", state)
    assert heard == []  # not before every rank has let go
    retained.finished(["r", "stranger"])
    retained.finished(["r"])
    assert heard == [end]
    with pytest.raises(ClaimNotFound):
        retained.return_claim("c")


def test_a_request_that_comes_again_starts_with_no_report() -> None:
    retained = Retained(ManualTime())
    retained.seen("r", State.READ)
    retained.finished(["r"])
    retained.retain(a_handle("r"), nothing)
    heard: list[State] = []
    retained.subscribe(lambda handle: heard.append(handle.state))
    retained.finished(["r"])
    assert heard == [State.EXPIRED]


def test_what_is_released_goes_to_the_workers_once() -> None:
    retained = Retained(ManualTime())
    retained.retain(a_handle("r1"), nothing)
    retained.retain(a_handle("r2"), nothing)
    retained.release_unlisted("never-a-handle")
    assert retained.release(["e/r1", "e/unknown"]) == ["e/r1"]
    assert retained.step() == ("never-a-handle", "r1")
    assert retained.step() == ()
    retained.release_unlisted("r2")
    assert retained.subscribe(lambda _: None) == []
    assert retained.step() == ("r2",)


def test_a_sink_that_fails_changes_nothing_of_what_was_done() -> None:
    retained = Retained(ManualTime())

    def fails(_: Handle) -> None:
        raise ZeroDivisionError

    retained.subscribe(fails)
    retained.retain(a_handle("r"), nothing)
    assert retained.acquire(ask("c")).state is State.CLAIMED
    retained.return_claim("c")
    assert retained.release(["e/r"]) == ["e/r"]
    assert retained.step() == ("r",)


def test_events_of_ranks_add_up() -> None:
    one = WorkerEvents([("a", State.READ)], [Transfer("x", 10, 1, 0.5)])
    both = one.merged(WorkerEvents([("a", State.EXPIRED)]))
    assert both.ends == [("a", State.READ), ("a", State.EXPIRED)]
    assert both.transfers == one.transfers
    assert both
    assert not WorkerEvents()
