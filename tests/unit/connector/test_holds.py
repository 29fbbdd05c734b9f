"""A reader never believes that blocks are held for longer than their owner holds them."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from contraflow.core.transfer_params import HOLD_EXTENSION, HOLD_UNTIL
from contraflow_connector.holds import Heartbeats, Hold, ends_late

LEASE, EXTENSION = 30.0, 20.0
HOLD = Hold(1000.0 + LEASE, EXTENSION)
MINE, OTHER = ("p1", "r1"), ("p1", "r2")


def test_without_heartbeats_a_hold_lasts_as_its_owner_said() -> None:
    assert HOLD.after([]) == HOLD.until


def test_heartbeats_while_it_lasts_make_it_longer() -> None:
    assert HOLD.after([1005.0]) == HOLD.until
    assert HOLD.after([1020.0]) == 1040.0
    assert HOLD.after([1020.0, 1034.0, 1048.0]) == 1068.0


@pytest.mark.parametrize("sent", [1025.0, 1029.9, 1030.0, 1500.0])
def test_a_heartbeat_that_may_find_the_blocks_freed_counts_for_nothing(sent: float) -> None:
    assert HOLD.after([sent, sent + 1]) == HOLD.until


def test_a_claimed_handle_is_held_as_long_as_it_was_granted_whatever_is_sent() -> None:
    assert Hold(1030.0).after([1001.0, 1010.0, 1029.0]) == 1030.0


@given(
    st.lists(
        st.tuples(st.floats(0.3, 40.0), st.floats(0.0, EXTENSION / 4), st.booleans()), max_size=20
    )
)
def test_whatever_is_late_by_less_than_the_margin_the_owner_holds_for_longer(
    heartbeats: list[tuple[float, float, bool]],
) -> None:
    """Each: seconds since the one before, seconds on its way, whether it leaves."""
    now = 1000.0
    known = Heartbeats()
    arrivals = []
    for pause, on_its_way, leaves in heartbeats:
        now += pause
        if leaves:
            known.sent([MINE], now)
            arrivals.append(now + on_its_way)
    held_until = HOLD.until
    for arrived in sorted(arrivals):
        if arrived < held_until:
            held_until = max(held_until, arrived + EXTENSION)
    assert HOLD.until <= known.prolong(HOLD, MINE, 0.0) <= held_until


def test_heartbeats_count_on_the_clock_of_the_owner() -> None:
    known = Heartbeats()
    known.sent([MINE], 20.0)
    assert known.prolong(HOLD, MINE, 1000.0) == 1040.0
    assert known.prolong(HOLD, MINE, 0.0) == HOLD.until


def test_a_heartbeat_is_for_the_leases_that_it_names() -> None:
    known = Heartbeats()
    known.sent([MINE, ("p2", "r2")], 1020.0)
    assert known.prolong(HOLD, MINE, 0.0) == 1040.0
    assert known.prolong(HOLD, OTHER, 0.0) == HOLD.until
    known.keep([OTHER])
    assert known.prolong(HOLD, MINE, 0.0) == HOLD.until


def test_a_heartbeat_in_every_step_keeps_a_short_lease_alive() -> None:
    known = Heartbeats()
    for step in range(10_000):
        known.sent([MINE], step * 0.01)
    assert known.prolong(Hold(3.0, 2.0), MINE, 0.0) == pytest.approx(102.0, abs=0.3)


def test_a_read_must_end_before_its_hold_by_more_than_the_clocks_may_differ() -> None:
    assert not ends_late(1029.0, HOLD.until)
    assert ends_late(1029.5, HOLD.until)


def test_an_owner_says_it_in_its_parameters() -> None:
    assert Hold.of(HOLD.to_params()) == HOLD
    assert Hold.of({HOLD_UNTIL: 1070}) == Hold(1070.0)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {HOLD_EXTENSION: 20.0},
        {HOLD_UNTIL: "1030"},
        {HOLD_UNTIL: True},
        {HOLD_UNTIL: None},
        {HOLD_UNTIL: 1030.0, HOLD_EXTENSION: "20"},
    ],
)
def test_what_makes_no_sense_is_no_hold(params: dict[str, Any]) -> None:
    assert Hold.of(params) is None


@pytest.mark.parametrize("value", [None, "1", True, math.nan, math.inf, -math.inf, 1e300, 10**400])
def test_what_no_clock_can_show_is_no_hold(value: object) -> None:
    assert Hold.of({HOLD_UNTIL: value}) is None
    assert Hold.of({HOLD_UNTIL: 5.0, HOLD_EXTENSION: value}) is None
    assert Hold.of({HOLD_UNTIL: 5, HOLD_EXTENSION: 1}) == Hold(5.0, 1.0)
