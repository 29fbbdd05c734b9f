from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import given

from contraflow.agent.mirror import HandleMirror, MirroredHandle
from contraflow.core.handle import State


def handle(name: str, session: str = "s", expires_at: float = 100.0) -> MirroredHandle:
    return MirroredHandle(
        handle_id=f"e/{name}",
        engine_id="e",
        request_id=name,
        tenant="acme",
        session_key=session,
        num_tokens=32,
        num_blocks=2,
        expires_at=expires_at,
        retained_at=0.0,
    )


def test_the_whole_table_replaces_what_was_known() -> None:
    mirror = HandleMirror()
    mirror.apply(handle("old"))
    mirror.replace([handle("a"), replace(handle("b"), state=State.READ), handle("c")])
    assert [one.request_id for one in mirror.live()] == ["a", "c"]


def test_the_newest_of_a_session_is_the_one_that_came_last() -> None:
    mirror = HandleMirror()
    mirror.replace([handle("a"), handle("b"), handle("x", "other")])
    # A claim on the older one does not make it newer.
    mirror.apply(replace(handle("a"), state=State.CLAIMED, claim_id="c1"))
    assert [one.request_id for one in mirror.of_session("s")] == ["a", "b"]
    assert [one.request_id for one in mirror.of_session("other")] == ["x"]
    assert mirror.session_keys() == ["s", "other"]


def test_the_older_branch_is_newest_again_when_the_newer_has_ended() -> None:
    mirror = HandleMirror()
    mirror.replace([handle("a"), handle("b")])
    assert mirror.apply(replace(handle("b"), state=State.READ)) == handle("b")
    assert [one.request_id for one in mirror.of_session("s")] == ["a"]


def test_news_of_the_end_of_an_unknown_handle_changes_nothing() -> None:
    mirror = HandleMirror()
    assert mirror.apply(replace(handle("a"), state=State.EXPIRED)) is None
    assert len(mirror) == 0


def test_handles_go_when_their_lease_is_over_though_the_engine_is_silent() -> None:
    mirror = HandleMirror()
    mirror.replace([handle("a", expires_at=10.0), handle("b", expires_at=20.0)])
    assert [one.request_id for one in mirror.expire(10.0)] == ["a"]
    assert mirror.get("e/a") is None
    assert mirror.get("e/b") == handle("b", expires_at=20.0)


changed = st.builds(
    lambda name, session, state, blocks, expires_at: replace(
        handle(name, session, expires_at), state=state, num_blocks=blocks
    ),
    st.sampled_from("abcd"),
    st.sampled_from("st"),
    st.sampled_from([State.RETAINED, State.CLAIMED, State.READ]),
    st.integers(1, 5),
    st.floats(0, 100),
)


@given(st.lists(st.one_of(changed, st.floats(0, 100), st.lists(changed, max_size=3))))
def test_what_it_keeps_count_of_is_what_counting_anew_finds(
    steps: list[MirroredHandle | float | list[MirroredHandle]],
) -> None:
    mirror = HandleMirror()
    for step in steps:
        if isinstance(step, MirroredHandle):
            mirror.apply(step)
        elif isinstance(step, list):
            mirror.replace(step)
        else:
            mirror.expire(step)
        live = mirror.live()
        assert mirror.num_blocks == sum(one.num_blocks for one in live)
        assert sorted(mirror.session_keys()) == sorted({one.session_key for one in live})
        for session in "st":
            expected = [one for one in live if one.session_key == session]
            assert mirror.of_session(session) == expected
