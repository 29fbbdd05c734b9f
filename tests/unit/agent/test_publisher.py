from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.support.fake_engine_link import session_key
from tests.unit.agent.test_mirror import handle

from contraflow.agent.publisher import (
    EXPIRY_TOLERANCE,
    Changes,
    Publication,
    Withdrawal,
    session_of,
)
from contraflow.core.fleet import Session

KEY = session_key("one")


def session(handle_id: str, key: str = KEY, expires_at: float = 100.0) -> Session:
    return Session(key, "e", "agent:1", handle_id, 32, expires_at, retained_at=0.0)


def changes(publication: Publication, *wanted: Session, noted: Iterable[str] = (KEY,)) -> Changes:
    """What is to be sent so that the directory holds ``wanted``, after news of sessions."""
    publication.note(noted)
    return publication.changes({one.session_key: one for one in wanted}.get)


def settled(publication: Publication, one: Session) -> None:
    publication.sending([one])
    publication.settled(one)


def test_a_record_is_published_once_for_each_change() -> None:
    publication = Publication()
    first, second = session("e/1"), session("e/2")
    assert changes(publication, first) == Changes(publish=[first])
    settled(publication, first)
    assert not changes(publication, first)
    assert changes(publication, second) == Changes(publish=[second])


def test_two_readings_of_one_lease_are_no_change_but_a_renewal_is() -> None:
    publication = Publication()
    settled(publication, session("e/1", expires_at=100.0))
    assert not changes(publication, session("e/1", expires_at=100.0 + EXPIRY_TOLERANCE))
    assert changes(publication, session("e/1", expires_at=500.0)).publish


def test_a_session_without_a_handle_is_withdrawn_by_the_handle_it_named() -> None:
    publication = Publication()
    settled(publication, session("e/1"))
    assert changes(publication) == Changes(withdraw=[Withdrawal(KEY, "e/1")])
    publication.withdrawing([Withdrawal(KEY, "e/1")])
    assert changes(publication, session("e/1")) == Changes(publish=[session("e/1")])
    publication.withdrawn(Withdrawal(KEY, "e/1"))
    assert not changes(publication)


def test_a_call_without_an_answer_leaves_both_versions_possible() -> None:
    publication = Publication()
    settled(publication, session("e/1"))
    publication.sending([session("e/2")])
    assert changes(publication, session("e/1")).publish == [session("e/1")]
    assert changes(publication, session("e/2")).publish == [session("e/2")]
    assert changes(publication).withdraw == [Withdrawal(KEY, "e/1"), Withdrawal(KEY, "e/2")]
    publication.withdrawn(Withdrawal(KEY, "e/1"))
    publication.withdrawn(Withdrawal(KEY, "e/2"))
    assert not changes(publication)


def test_everything_is_published_anew_after_a_lapse() -> None:
    publication = Publication()
    settled(publication, session("e/1"))
    publication.forget()
    assert changes(publication, session("e/1")).publish == [session("e/1")]


def test_what_was_not_noted_is_not_looked_at_again() -> None:
    publication = Publication()
    one, two = session("e/1"), session("e/2", session_key("two"))
    assert changes(publication, one, two, noted=[two.session_key]).publish == [two]
    publication.sending([two])
    publication.settled(two)
    assert not changes(publication, two, noted=[])
    assert changes(publication, noted=[]) == Changes()
    publication.note([two.session_key])
    assert changes(publication, noted=[]).withdraw == [Withdrawal(two.session_key, "e/2")]


def test_news_that_comes_while_a_record_is_on_its_way_is_sent_after_it() -> None:
    publication = Publication()
    first, second = session("e/1"), session("e/2")
    assert changes(publication, first).publish == [first]
    publication.sending([first])
    publication.note([KEY])
    publication.settled(first)
    assert changes(publication, second, noted=[]).publish == [second]


def test_malformed_session_keys_are_not_published() -> None:
    assert session_of([handle("a", "not a key")], "agent:1") is None
    assert session_of([], "agent:1") is None


def test_a_record_names_the_newest_handle_and_counts_the_branches() -> None:
    assert session_of([handle("b", KEY)], "agent:1") == replace(session("e/b"), num_tokens=32)
    record = session_of([handle("a", KEY), handle("b", KEY)], "agent:1")
    assert record == replace(session("e/b"), num_tokens=32, branches=2)


def test_a_branch_that_ends_is_news() -> None:
    publication = Publication()
    settled(publication, replace(session("e/b"), branches=2))
    assert changes(publication, session("e/b")).publish == [session("e/b")]


class Lossy:
    """A directory, and what a naive publisher that compares everything would see."""

    def __init__(self) -> None:
        self.publication = Publication()
        self.wanted: dict[str, Session] = {}
        self.holds: dict[str, str] = {}

    def change(self, name: str, number: int) -> None:
        """A session's newest handle is another; with 0 it has none."""
        key = session_key(name)
        self.wanted.pop(key, None)
        if number:
            self.wanted[key] = session(f"e/{number}", key)
        self.publication.note([key])

    def lose(self) -> None:
        """The registration lapses."""
        self.holds.clear()
        self.publication.forget()
        self.publication.note(self.wanted)

    def publish(self, most: int, fate: str) -> None:
        """Send the first ``most`` changes of each kind; the others are never sent."""
        found = self.publication.changes(self.wanted.get)
        publish, withdraw = found.publish[:most], found.withdraw[:most]
        self.publication.sending(publish)
        self.publication.withdrawing(withdraw)
        if fate != "neither":
            self.holds |= {one.session_key: one.handle_id for one in publish}
            for gone in withdraw:
                if self.holds.get(gone.session_key) == gone.handle_id:
                    del self.holds[gone.session_key]
        if fate == "answered":
            for one in publish:
                self.publication.settled(one)
            for gone in withdraw:
                self.publication.withdrawn(gone)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("change"), st.sampled_from("abc"), st.integers(0, 3)),
            st.tuples(
                st.just("publish"),
                st.integers(0, 3),
                st.sampled_from(["answered", "performed", "neither"]),
            ),
            st.tuples(st.just("lose")),
        )
    )
)
def test_the_directory_ends_up_with_what_there_is(steps: list[tuple[Any, ...]]) -> None:
    world = Lossy()
    for name, *arguments in steps:
        getattr(world, name)(*arguments)
    world.publish(99, "answered")
    assert world.holds == {key: one.handle_id for key, one in world.wanted.items()}
    assert not world.publication.changes(world.wanted.get)
