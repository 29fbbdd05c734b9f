"""What an agent publishes, with answers that get lost and registrations that lapse: in the end
the directory holds what there is, and never a handle that was not wanted."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from contraflow.agent.publisher import Publication
from contraflow.core.fleet import Session

KEYS = ("a", "b")
keys = st.sampled_from(KEYS)
passes = st.lists(st.sampled_from(["done", "lost before", "lost after"]), max_size=2)
"""How the calls of each pass end that follows a change."""


class PublicationMachine(RuleBasedStateMachine):
    """``wanted`` is what the agent's mirror says, ``held`` what the directory has."""

    def __init__(self) -> None:
        super().__init__()
        self.publication = Publication()
        self.wanted: dict[str, Session] = {}
        self.held: dict[str, Session] = {}
        self.ever: set[str] = set()
        self.now = 1000.0

    @rule(key=keys, passes=passes)
    def retain(self, key: str, passes: list[str]) -> None:
        handle_id = f"e/{len(self.ever)}"
        self.ever.add(handle_id)
        self.wanted[key] = Session(key, "e", "a:1", handle_id, 16, self.now + 480, self.now)
        self.publication.note([key])
        self.publish(passes)

    @rule(key=keys, passes=passes)
    def end(self, key: str, passes: list[str]) -> None:
        self.wanted.pop(key, None)
        self.publication.note([key])
        self.publish(passes)

    @rule(key=keys, seconds=st.sampled_from([0.1, 480.0]), passes=passes)
    def renew(self, key: str, seconds: float, passes: list[str]) -> None:
        if known := self.wanted.get(key):
            self.wanted[key] = Session(
                key, "e", "a:1", known.handle_id, 16, known.expires_at + seconds, self.now
            )
            self.publication.note([key])
        self.publish(passes)

    def publish(self, passes: list[str]) -> None:
        """A pass ends with the first call that is lost, on either way."""
        for how in passes:
            self._pass(how)

    def _pass(self, how: str) -> None:
        changes = self.publication.changes(self.wanted.get)
        keys = {one.session_key for one in changes.publish}
        assert not keys & {one.session_key for one in changes.withdraw}
        for session in changes.publish:
            self.publication.sending([session])
            if how != "lost before":
                self.held[session.session_key] = session
            if how == "done":
                self.publication.settled(session)
            else:
                return
        for withdrawal in changes.withdraw:
            self.publication.withdrawing([withdrawal])
            held = self.held.get(withdrawal.session_key)
            if how != "lost before" and held and held.handle_id == withdrawal.handle_id:
                del self.held[withdrawal.session_key]
            if how == "done":
                self.publication.withdrawn(withdrawal)
            else:
                return

    @rule()
    def lapse(self) -> None:
        """The registration ends, and all records with it; the agent notes it, as it does."""
        self.held.clear()
        self.publication.forget()
        self.publication.note(self.wanted)

    @invariant()
    def the_directory_names_only_handles_that_there_were(self) -> None:
        assert {session.handle_id for session in self.held.values()} <= self.ever

    @rule()
    def settle(self) -> None:
        """Once no call is lost any more the directory holds what there is."""
        for _ in range(3):
            self._pass("done")
        assert not self.publication.changes(self.wanted.get)
        assert self.held.keys() == self.wanted.keys()
        for key, session in self.wanted.items():
            assert self.held[key].handle_id == session.handle_id
            assert abs(self.held[key].expires_at - session.expires_at) <= 1.0

    def teardown(self) -> None:
        self.settle()


TestPublication = PublicationMachine.TestCase
TestPublication.settings = settings(deadline=None, stateful_step_count=40)
