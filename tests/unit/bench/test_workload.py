"""Workloads: equal seeds give equal ones, lengths are what was asked for, losses add up."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from contraflow.bench.multiturn.shapes import AGENT, REFERENCE, agent, reference
from contraflow.bench.multiturn.workload import Conversation, Fork, Turn, Workload


def test_the_reference_is_ten_times_five_turns_over_evenly_spread_prefixes() -> None:
    workload = reference(REFERENCE, seed=1)
    assert workload.turn_count == 50
    prefixes = sorted(one.prefix_tokens for one in workload.conversations)
    assert (prefixes[0], prefixes[-1]) == (2_000, 24_000)
    gaps = {high - low for low, high in pairwise(prefixes)}
    assert max(gaps) - min(gaps) <= 1
    turns = {turn for one in workload.conversations for turn in one.turns}
    assert turns == {Turn(150, 300)}
    assert workload.longest == 500 + 24_000 + 5 * 450


@pytest.mark.parametrize("shape", [reference, agent])
def test_a_seed_decides_everything(shape: type) -> None:
    sizes = AGENT if shape is agent else REFERENCE
    assert shape(sizes, 7) == shape(sizes, 7)
    assert shape(sizes, 7) != shape(sizes, 8)


def test_agents_get_results_of_tools_pause_and_fork() -> None:
    workload = agent(replace(AGENT, conversations=20), seed=3)
    trunks = [turn for one in workload.conversations for turn in one.turns]
    tools = [turn for turn in trunks if turn.from_tool]
    assert len(trunks) > len(tools) > len(trunks) / 2
    assert len({turn.input_tokens for turn in tools}) > len(tools) / 4
    assert all(turn.input_tokens > 0 and turn.output_tokens > 0 for turn in trunks)
    assert all(not one.turns[0].from_tool for one in workload.conversations)
    assert any(turn.think_seconds > 0 for turn in trunks)
    forks = [fork for one in workload.conversations for fork in one.forks]
    assert forks
    assert all(1 <= fork.after < AGENT.turns for fork in forks)


def test_without_think_time_nobody_pauses() -> None:
    workload = agent(replace(AGENT, think_seconds=0.0), seed=3)
    assert {turn.think_seconds for one in workload.conversations for turn in one.turns} == {0.0}


FORKED = Conversation(
    0, 100, (Turn(10, 5),) * 3, (Fork(1, (Turn(50, 50),)), Fork(2, (Turn(1, 1),) * 4))
)


def test_the_longest_branch_counts() -> None:
    assert FORKED.longest == 100 + 15 + 100
    assert FORKED.turn_count == 3 + 1 + 4
    assert Workload("x", (FORKED,), common_prefix_tokens=7).longest == 222


@pytest.mark.parametrize(
    ("branch", "turn", "lost"), [(0, 1, 2 + 5), (0, 2, 1 + 4), (0, 3, 0), (1, 2, 0), (2, 3, 3)]
)
def test_what_hangs_on_a_turn(branch: int, turn: int, lost: int) -> None:
    assert FORKED.lost_after(branch, turn) == lost


def test_the_warm_up_is_the_shortest_beginning_without_pauses() -> None:
    long, short = Conversation(0, 900, (Turn(9, 9),)), Conversation(1, 20, (Turn(1, 2, 3.0),) * 3)
    assert Workload("x", (long, short)).warm_up(2) == Conversation(-1, 20, (Turn(1, 2),) * 2)
