import asyncio
from contextlib import ExitStack

import pytest
from tests.support.clock import ManualClock
from tests.support.fake_engine_link import engine
from tests.unit.agent.test_mirror import handle

from contraflow.agent.attachment import Attachment
from contraflow.agent.codec import Introduction
from contraflow.agent.engines import REMEMBERED, Engines
from contraflow.core.errors import EngineIdReused, EngineIncarnationStale, EngineNotAttached
from contraflow.core.fleet import Engine


class Watched:
    """Engines, and what was said about them."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []
        self.clock = ManualClock()
        self.engines = Engines(
            self.clock,
            first_epoch=1000,
            observe_pull=lambda outcome, report: None,
            observe_handle=lambda handle: self.said.append((handle.state, handle.handle_id)),
            on_attached=self._note("attached"),
            on_detached=self._note("detached"),
            on_replaced=self._note("replaced"),
        )

    def _note(self, what: str):  # type: ignore[no-untyped-def]
        def note(attachment: Attachment) -> None:
            self.said.append((what, attachment.engine.engine_id))

        return note

    def attach(self, stack: ExitStack, one: Engine) -> int:
        _, link = stack.enter_context(self.engines.attach(Introduction(one, [])))
        return link.epoch


async def test_epochs_grow_with_each_link() -> None:
    watched = Watched()
    with ExitStack() as stack:
        epochs = [watched.attach(stack, engine(name)) for name in ("a", "b", "a")]
    assert epochs == [1000, 1001, 1002]


async def test_a_link_that_was_taken_over_ends_without_detaching_the_engine() -> None:
    watched = Watched()
    with ExitStack() as outer:
        with ExitStack() as inner:
            watched.attach(inner, engine("a"))
            watched.attach(outer, engine("a"))
        assert watched.engines.find("a").link is not None
    assert watched.said == [("attached", "a"), ("attached", "a"), ("detached", "a")]


async def test_scenario_09_a_new_incarnation_in_the_same_place_replaces_the_old() -> None:
    watched = Watched()
    with ExitStack() as stack:
        watched.attach(stack, engine("old"))
    with ExitStack() as stack:
        watched.attach(stack, engine("new"))
        with pytest.raises(EngineIncarnationStale):
            watched.engines.find("old")
        assert ("replaced", "old") in watched.said
    with pytest.raises(EngineNotAttached):
        watched.engines.find("new")
    with ExitStack() as stack:
        watched.attach(stack, engine("old"))  # it lives after all
        assert watched.engines.find("old").engine.engine_id == "old"


async def test_scenario_15_other_ranks_and_endpoints_are_other_places() -> None:
    watched = Watched()
    with ExitStack() as stack:
        watched.attach(stack, engine("a"))
        watched.attach(stack, engine("b", dp_rank=1))
        watched.attach(stack, engine("c", endpoint="http://127.0.0.1:10"))
        assert [watched.engines.find(name).engine.engine_id for name in "abc"] == ["a", "b", "c"]


async def test_an_id_with_two_nonces_is_never_pulled_again() -> None:
    watched = Watched()
    with ExitStack() as stack:
        watched.attach(stack, engine("a", boot_nonce="one"))
    with ExitStack() as stack:
        watched.attach(stack, engine("a", boot_nonce="two"))
        assert watched.engines.find("a").engine.boot_nonce == "two"
        with pytest.raises(EngineIdReused):
            watched.engines.find_for_pull("a")
    with pytest.raises(EngineIdReused):
        watched.engines.find_for_pull("a")


async def test_the_number_of_remembered_incarnations_is_bounded() -> None:
    watched = Watched()
    for number in range(REMEMBERED + 2):
        with ExitStack() as stack:
            watched.attach(stack, engine(f"e{number}"))
    with pytest.raises(EngineNotAttached):
        watched.engines.find("e0")
    with pytest.raises(EngineIncarnationStale):
        watched.engines.find("e2")


async def test_an_incarnation_that_was_replaced_while_it_was_linked_ends_with_its_link() -> None:
    watched = Watched()
    with ExitStack() as newer:
        with ExitStack() as older:
            _, link = older.enter_context(
                watched.engines.attach(Introduction(engine("old"), [handle("1", "chat")]))
            )
            watched.attach(newer, engine("new"))
            assert ("replaced", "old") not in watched.said
        assert watched.said[-3:] == [("detached", "old"), ("LOST", "e/1"), ("replaced", "old")]
        assert link.epoch == 1000


async def test_leases_run_out_also_where_the_engine_has_no_link() -> None:
    watched = Watched()
    with ExitStack() as stack:
        stack.enter_context(
            watched.engines.attach(Introduction(engine("a"), [handle("1", "chat", 1005.0)]))
        )
    expiring = asyncio.create_task(watched.engines.keep_expiring())
    await watched.clock.wait_for_sleepers()
    watched.clock.advance(5.0)
    await watched.clock.wait_for_sleepers()
    expiring.cancel()
    assert watched.said[-1] == ("EXPIRED", "e/1")
