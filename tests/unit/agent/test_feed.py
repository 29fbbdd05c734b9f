"""Watching handles: what is told to whom, and what becomes of a slow reader."""

from __future__ import annotations

import pytest
from tests.unit.agent.test_mirror import handle

from contraflow.agent.feed import HandleFeed
from contraflow.core.errors import Overloaded


async def test_changes_come_in_order_and_only_those_of_the_session() -> None:
    feed = HandleFeed()
    with feed.watching("a") as one, feed.watching("") as every:
        told = [handle("1", "a"), handle("2", "b"), handle("3", "a")]
        for change in told:
            feed.tell(change)
        assert [await every.next() for _ in told] == told
        assert [await one.next() for _ in "12"] == [told[0], told[2]]


async def test_a_reader_that_is_too_slow_is_told_and_the_others_are_not_held_up() -> None:
    feed = HandleFeed(backlog=2)
    with feed.watching("a") as slow, feed.watching("b") as other:
        for number in range(3):
            feed.tell(handle(str(number), "a"))
        feed.tell(handle("x", "b"))
        with pytest.raises(Overloaded):
            await slow.next()
        assert (await other.next()).handle_id == "e/x"


async def test_what_was_before_is_not_told() -> None:
    feed = HandleFeed(backlog=1)
    feed.tell(handle("1", "a"))
    feed.tell(handle("2", "a"))
    with feed.watching("") as watcher:
        feed.tell(handle("3", "a"))
        assert (await watcher.next()).handle_id == "e/3"
