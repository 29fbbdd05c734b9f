"""The checks of the ring find what they are for."""

from __future__ import annotations

import pytest

from contraflow.core.handle import State
from contraflow.verify.client import Outcome
from tests.ring.history import Harm, History, Turn

PROMPT = list(b"said before")


def a_turn(**fields: object) -> Turn:
    turn = Turn("c", 1, "router-1", PROMPT, 8, began=10.0, ended=12.0, outcome=Outcome())
    outcome = Outcome(status=200, whole=True, ids=turn.expected, prompt=PROMPT)
    outcome.report = {"prefill": "prefill-1-a", "decode": "decode-2-b"}
    for name, value in fields.items():
        setattr(outcome, name, value)
    turn.outcome = outcome
    return turn


def kinds(history: History, *harms: Harm, reads: tuple[str, ...] = ()) -> set[str]:
    turns = [{"outcome": "PULLED", "handle_id": handle} for handle in reads]
    return {text.partition(":")[0] for text in history.violations(harms, turns)}


def test_a_good_run_has_none() -> None:
    handles = {"h": [State.RETAINED, State.CLAIMED, State.RETAINED, State.RELEASED]}
    assert kinds(History([a_turn()], handles), reads=("h", "i")) == set()


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"ids": [1, 2]}, "NEVER_WRONG"),
        ({"ids": a_turn().expected[:3], "whole": False}, "NEVER_FAILS"),
        ({"ids": a_turn().expected[:7]}, "NEVER_FAILS"),
        ({"prompt": [1]}, "NEVER_WRONG"),
        ({"status": 502, "ids": []}, "NEVER_FAILS"),
        ({"status": 0, "ids": [], "hung": True}, "NEVER_HANGS"),
        ({"leaked": True}, "CLIENT_PARAMS"),
    ],
)
def test_what_must_not_be(fields: dict[str, object], kind: str) -> None:
    assert kind in kinds(History([a_turn(**fields)]))


@pytest.mark.parametrize(
    ("harm", "excused"),
    [
        (Harm("killed", "router-1", 11.0, 11.0), True),
        (Harm("killed", "decode-2", 11.0, 11.0), True),
        (Harm("killed", "prefill-1", 9.0, 10.5), True),
        (Harm("killed", "prefill-1", 8.0, 9.0), False),
        (Harm("killed", "decode-1", 11.0, 11.0), False),
        (Harm("killed", "router-2", 11.0, 11.0), False),
        (Harm("killed", "agent-1", 11.0, 11.0), False),
        (Harm("paused", "prefill-1", 11.0, 11.0), False),
        (Harm("stopped", "decode-2", 11.0, 11.0), False),
    ],
)
def test_only_the_death_of_who_serves_it_excuses_a_turn(harm: Harm, excused: bool) -> None:
    failed = History([a_turn(status=502, ids=[])])
    assert kinds(failed, harm) == (set() if excused else {"NEVER_FAILS"})
    wrong = History([a_turn(ids=[1, 2])])
    assert "NEVER_WRONG" in kinds(wrong, harm)


@pytest.mark.parametrize("end", [State.READ, State.RELEASED, State.LOST])
def test_an_ended_handle_stays_ended(end: State) -> None:
    for after in (State.RETAINED, State.CLAIMED, State.READ, State.LAPSED):
        if after is not end:
            assert kinds(History(handles={"h": [State.RETAINED, end, after]})) == {"HANDLE_LIFE"}


def test_a_handle_is_read_once() -> None:
    assert kinds(History(), reads=("h", "i", "h")) == {"READ_ONCE"}
