from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.support.fake_engine_link import session_key
from tests.unit.agent.test_mirror import handle

from contraflow.agent.publisher import (
    EXPIRY_TOLERANCE,
    Changes,
    Publication,
    Withdrawal,
    sessions_of,
)
from contraflow.core.fleet import Session

KEY = session_key("one")


def session(handle_id: str, key: str = KEY, expires_at: float = 100.0) -> Session:
    return Session(key, "e", "agent:1", handle_id, 32, expires_at, retained_at=0.0)


def settled(publication: Publication, one: Session) -> None:
    publication.sending([one])
    publication.settled(one)


def test_a_record_is_published_once_for_each_change() -> None:
    publication = Publication()
    first, second = session("e/1"), session("e/2")
    assert publication.changes({KEY: first}) == Changes(publish=[first])
    settled(publication, first)
    assert not publication.changes({KEY: first})
    assert publication.changes({KEY: second}) == Changes(publish=[second])


def test_two_readings_of_one_lease_are_no_change_but_a_renewal_is() -> None:
    publication = Publication()
    settled(publication, session("e/1", expires_at=100.0))
    assert not publication.changes({KEY: session("e/1", expires_at=100.0 + EXPIRY_TOLERANCE)})
    assert publication.changes({KEY: session("e/1", expires_at=500.0)}).publish


def test_a_session_without_a_handle_is_withdrawn_by_the_handle_it_named() -> None:
    publication = Publication()
    settled(publication, session("e/1"))
    assert publication.changes({}) == Changes(withdraw=[Withdrawal(KEY, "e/1")])
    publication.withdrawing([Withdrawal(KEY, "e/1")])
    assert publication.changes({KEY: session("e/1")}) == Changes(publish=[session("e/1")])
    publication.withdrawn(Withdrawal(KEY, "e/1"))
    assert not publication.changes({})


def test_a_call_without_an_answer_leaves_both_versions_possible() -> None:
    publication = Publication()
    settled(publication, session("e/1"))
    publication.sending([session("e/2")])
    assert publication.changes({KEY: session("e/1")}).publish == [session("e/1")]
    assert publication.changes({KEY: session("e/2")}).publish == [session("e/2")]
    assert publication.changes({}).withdraw == [Withdrawal(KEY, "e/1"), Withdrawal(KEY, "e/2")]
    publication.withdrawn(Withdrawal(KEY, "e/1"))
    publication.withdrawn(Withdrawal(KEY, "e/2"))
    assert not publication.changes({})


def test_everything_is_published_anew_after_a_lapse() -> None:
    publication = Publication()
    settled(publication, session("e/1"))
    publication.forget()
    assert publication.changes({KEY: session("e/1")}).publish == [session("e/1")]


def test_malformed_session_keys_are_not_published() -> None:
    live = {"not a key": [handle("a", "not a key")], KEY: [handle("b", KEY)]}
    records = sessions_of(live, "agent:1")
    assert records == {KEY: replace(session("e/b"), num_tokens=32)}


def test_a_record_names_the_newest_handle_and_counts_the_branches() -> None:
    records = sessions_of({KEY: [handle("a", KEY), handle("b", KEY)]}, "agent:1")
    assert records == {KEY: replace(session("e/b"), num_tokens=32, branches=2)}


def test_a_branch_that_ends_is_news() -> None:
    publication = Publication()
    settled(publication, replace(session("e/b"), branches=2))
    assert publication.changes({KEY: session("e/b")}).publish == [session("e/b")]


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from("abc"), st.integers(1, 3)),  # handles there are
            st.integers(0, 2),  # 0: answered, 1: performed but not answered, 2: neither
        )
    )
)
def test_the_directory_ends_up_with_what_there_is(
    steps: list[tuple[dict[str, int], int]],
) -> None:
    publication = Publication()
    directory: dict[str, str] = {}
    for names, fate in [*steps, (steps[-1][0] if steps else {}, 0)]:
        wanted = {
            session_key(name): session(f"e/{number}", session_key(name))
            for name, number in names.items()
        }
        changes = publication.changes(wanted)
        publication.sending(changes.publish)
        publication.withdrawing(changes.withdraw)
        if fate < 2:
            directory |= {one.session_key: one.handle_id for one in changes.publish}
            for gone in changes.withdraw:
                if directory.get(gone.session_key) == gone.handle_id:
                    del directory[gone.session_key]
        if fate == 0:
            for one in changes.publish:
                publication.settled(one)
            for gone in changes.withdraw:
                publication.withdrawn(gone)
    assert directory == {key: one.handle_id for key, one in wanted.items()}
    assert not publication.changes(wanted)
