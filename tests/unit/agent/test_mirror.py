from dataclasses import replace

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
    found = mirror.by_session()
    ids = {key: [one.request_id for one in handles] for key, handles in found.items()}
    assert ids == {"s": ["a", "b"], "other": ["x"]}


def test_the_older_branch_is_newest_again_when_the_newer_has_ended() -> None:
    mirror = HandleMirror()
    mirror.replace([handle("a"), handle("b")])
    assert mirror.apply(replace(handle("b"), state=State.READ)) == handle("b")
    assert [one.request_id for one in mirror.by_session()["s"]] == ["a"]


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
