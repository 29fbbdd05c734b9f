"""Which turns may fail, by what became of their legs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contraflow.core.fleet import Engine, Role
from contraflow.verify.legs import Fate, Leg, Trace

OFFER = {"remote_engine_id": "p1", "remote_request_id": "r1", "remote_block_ids": [[1]]}
PREFILL, DECODE = Role.PREFILL, Role.DECODE


def fleet(*names: str) -> list[Engine]:
    return [
        Engine(name, "n", PREFILL if name[0] == "p" else DECODE, f"http://{name}") for name in names
    ]


def trace(*names: str) -> Trace:
    engines = fleet(*names)
    return Trace(lambda: engines)


def leg(
    turn: Trace,
    role: Role,
    fate: Fate,
    *,
    blocks: bool = False,
    reused: bool = False,
    stream: bool = True,
    started: bool = False,
    said: bool = False,
) -> Leg:
    fields: dict[str, Any] = {"stream": stream, "kv_transfer_params": OFFER if blocks else {}}
    one = turn.begin(role, f"http://{role[0]}1", json.dumps(fields).encode(), reused=reused)
    one.sent, one.started, one.fate = fate is not Fate.REFUSED, started or said, fate
    if said:
        one.read(b'data: {"choices":[{"token_ids":[7]}]}')
    return one


@pytest.mark.parametrize(
    ("piece", "status", "fate"),
    [
        (b'{"choices":[{"finish_reason":"stop"}]}', 200, Fate.WELL),
        (b'{"choices":[{"finish_reason":"abort"}]}', 200, Fate.ABORTED),
        (b'data: {"error":{"code":500}}\n\n', 200, Fate.FAILED),
        (b"{}", 500, Fate.FAILED),
        (b"{}", 404, Fate.WELL),
    ],
)
def test_the_fate_of_an_answer_that_came_to_its_end(piece: bytes, status: int, fate: Fate) -> None:
    one = leg(trace("d1"), DECODE, Fate.BROKEN)
    one.read(piece)
    one.ended(status)
    assert one.fate is fate


@pytest.mark.parametrize(
    ("role", "fate", "how", "may"),
    [
        (PREFILL, Fate.REFUSED, {}, False),
        (PREFILL, Fate.BROKEN, {"blocks": True}, False),
        (PREFILL, Fate.FAILED, {"blocks": True}, False),
        (PREFILL, Fate.BROKEN, {"reused": True}, False),
        (PREFILL, Fate.BROKEN, {"reused": True, "started": True}, True),
        (PREFILL, Fate.BROKEN, {}, True),
        (PREFILL, Fate.FAILED, {}, True),
        (PREFILL, Fate.SILENT, {"blocks": True}, True),
        (PREFILL, Fate.ABORTED, {"said": True}, False),
        (DECODE, Fate.ABORTED, {}, True),
        (DECODE, Fate.ABORTED, {"said": True}, True),
        (DECODE, Fate.WELL, {}, False),
        (DECODE, Fate.REFUSED, {}, True),
        (DECODE, Fate.BROKEN, {"blocks": True}, False),
        (DECODE, Fate.BROKEN, {"blocks": True, "started": True}, False),
        (DECODE, Fate.FAILED, {"blocks": True, "started": True}, False),
        (DECODE, Fate.BROKEN, {"blocks": True, "said": True}, True),
        (DECODE, Fate.BROKEN, {"blocks": True, "started": True, "stream": False}, True),
        (DECODE, Fate.FAILED, {"blocks": True, "started": True, "stream": False}, False),
        (DECODE, Fate.BROKEN, {"reused": True}, False),
        (DECODE, Fate.FAILED, {}, True),
    ],
)
def test_a_turn_whose_only_leg_of_a_role(
    role: Role, fate: Fate, how: dict[str, bool], may: bool
) -> None:
    turn = trace("p1", "d1")
    leg(turn, role, fate, **how)
    assert turn.may_fail() is may


@pytest.mark.parametrize("fate", [Fate.REFUSED, Fate.ABORTED])
def test_a_decode_engine_that_takes_nothing_fails_no_turn_while_there_is_another(
    fate: Fate,
) -> None:
    turn = trace("d1", "d2")
    leg(turn, DECODE, fate)
    assert not turn.may_fail()
    leg(turn, DECODE, fate)
    assert turn.may_fail()


def test_one_retry_on_a_fresh_connection_is_due() -> None:
    turn = trace("d1")
    leg(turn, DECODE, Fate.BROKEN, reused=True)
    leg(turn, DECODE, Fate.BROKEN, reused=True)
    assert turn.may_fail()


def test_what_was_offered_goes_out_once() -> None:
    turn = trace("d1")
    leg(turn, DECODE, Fate.REFUSED, blocks=True)
    leg(turn, DECODE, Fate.BROKEN, blocks=True)
    assert list(turn.wrong()) == []  # nothing of the first was sent
    leg(turn, DECODE, Fate.BROKEN, blocks=True)
    assert list(turn.wrong()) == ["('p1', 'r1') went out again"]


def test_nothing_is_sent_after_the_answer_has_begun() -> None:
    turn = trace("d1")
    leg(turn, DECODE, Fate.BROKEN, said=True)
    assert list(turn.wrong()) == []
    leg(turn, DECODE, Fate.WELL)
    assert list(turn.wrong()) == ["a leg was sent after the answer had begun"]


def test_no_role_gets_more_legs_than_there_are_causes() -> None:
    turn = trace("p1")
    for _ in range(5):
        leg(turn, PREFILL, Fate.BROKEN)
    assert list(turn.wrong()) == ["5 legs of prefill"]
