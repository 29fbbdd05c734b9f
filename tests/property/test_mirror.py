"""The agent's copy of a handle table, against a list that is searched anew each time."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from contraflow.agent.mirror import HandleMirror, MirroredHandle
from contraflow.core.handle import LIVE, State

handles = st.builds(
    MirroredHandle,
    handle_id=st.sampled_from(["e/1", "e/2", "e/3", "e/4"]),
    engine_id=st.just("e"),
    request_id=st.just("r"),
    tenant=st.just("t"),
    session_key=st.sampled_from(["s1", "s2"]),
    num_tokens=st.just(1),
    num_blocks=st.integers(0, 9),
    expires_at=st.integers(0, 9).map(float),
    retained_at=st.just(0.0),
    state=st.sampled_from(sorted(State)),
)
steps = handles | st.lists(handles, max_size=4) | st.integers(0, 9)


def naive(known: list[MirroredHandle], handle: MirroredHandle) -> list[MirroredHandle]:
    """One that is known keeps its place, unless it has ended or changed its session."""
    for index, one in enumerate(known):
        if one.handle_id == handle.handle_id:
            rest = [*known[:index], *known[index + 1 :]]
            if handle.state not in LIVE:
                return rest
            if one.session_key != handle.session_key:
                return [*rest, handle]
            return [*known[:index], handle, *known[index + 1 :]]
    return [*known, handle] if handle.state in LIVE else known


@given(st.lists(steps, max_size=20))
def test_it_knows_what_the_list_knows(
    said: list[MirroredHandle | list[MirroredHandle] | int],
) -> None:
    mirror, known = HandleMirror(), list[MirroredHandle]()
    for step in said:
        if isinstance(step, MirroredHandle):
            before = [one for one in known if one.handle_id == step.handle_id]
            assert mirror.apply(step) == (before[0] if before else None)
            known = naive(known, step)
        elif isinstance(step, list):
            mirror.replace(step)
            known = []
            for handle in step:
                known = naive(known, handle)
        else:
            over = [one for one in known if one.expires_at <= step]
            assert mirror.expire(float(step)) == over
            known = [one for one in known if one.expires_at > step]
        assert mirror.live() == known
        assert len(mirror) == len(known)
        assert mirror.num_blocks == sum(one.num_blocks for one in known)
        assert set(mirror.session_keys()) == {one.session_key for one in known}
        for key in ("s1", "s2"):
            of_session = sorted(one.handle_id for one in known if one.session_key == key)
            assert sorted(one.handle_id for one in mirror.of_session(key)) == of_session
