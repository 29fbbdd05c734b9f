"""The view's history: what a watch can resume from, and what it can not."""

from __future__ import annotations

import pytest

from contraflow.core.errors import RevisionCompacted, StoreUnavailable
from contraflow.core.fleet import Engine, Role, Session
from contraflow.directory.view import Removal, Step, View


def engine(name: str, nonce: str = "n") -> Engine:
    return Engine(name, nonce, Role.PREFILL, "http://127.0.0.1:1")


def session(handle: str, expires_at: float = 60.0) -> Session:
    return Session("k", "e1", "a:1", handle, 1, expires_at, retained_at=expires_at - 60.0)


def filled(max_history: int = 100) -> View:
    view = View(max_history)
    view.resync([engine("e1"), session("h1")], 10)
    return view


def test_nothing_is_served_before_the_first_content() -> None:
    with pytest.raises(StoreUnavailable):
        View(10).require_filled()


def test_steps_since_a_revision() -> None:
    view = filled()
    view.apply(11, [session("h2")])
    view.apply(13, [Removal(session_key="k"), engine("e2")])
    assert view.since(11, view.epoch) == [
        Step(13, (Removal(session_key="k"), engine("e2"))),
    ]
    assert [step.revision for step in view.since(10, view.epoch)] == [11, 13]
    assert view.since(13, view.epoch) == []
    assert (set(view.engines), set(view.sessions)) == ({"e1", "e2"}, set())


def test_history_before_the_first_content_is_unknown() -> None:
    view = filled()
    with pytest.raises(RevisionCompacted):
        view.since(9, view.epoch)


def test_a_revision_of_the_future_is_not_ours() -> None:
    view = filled()
    with pytest.raises(RevisionCompacted):
        view.since(11, view.epoch)


def test_a_lagging_replica_says_so() -> None:
    view = filled()
    view.lost()
    assert view.since(10, view.epoch) == []
    with pytest.raises(StoreUnavailable):
        view.since(11, view.epoch)


def test_history_is_bounded() -> None:
    view = filled(max_history=2)
    for revision in (11, 12, 13):
        view.apply(revision, [session(f"h{revision}")])
    assert [step.revision for step in view.since(11, view.epoch)] == [12, 13]
    with pytest.raises(RevisionCompacted):
        view.since(10, view.epoch)


def test_a_resync_becomes_one_step() -> None:
    view = filled()
    view.lost()
    view.resync([engine("e2"), session("h1", 60.1)], 20)
    assert view.since(10, view.epoch) == [Step(20, (Removal(engine_id="e1"), engine("e2")))]
    assert view.in_sync


def test_a_resync_without_change_is_no_step() -> None:
    view = filled()
    view.resync([engine("e1"), session("h1", 60.1)], 20)
    assert (view.revision, view.since(10, view.epoch)) == (10, [])


def test_a_store_that_starts_over_ends_all_resumption() -> None:
    view = filled()
    epoch = view.epoch
    view.resync([engine("e1")], 3)
    with pytest.raises(RevisionCompacted):
        view.since(10, epoch)
    view.apply(10, [engine("e2")])
    with pytest.raises(RevisionCompacted):
        view.since(10, epoch)


def test_a_closed_view_serves_nothing() -> None:
    view = filled()
    view.close()
    with pytest.raises(StoreUnavailable):
        view.since(10, view.epoch)
