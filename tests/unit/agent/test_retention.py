"""The policy at work on attached engines, on a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from google.protobuf.duration_pb2 import Duration
from tests.support.clock import ManualClock
from tests.support.fake_engine_link import engine
from tests.unit.agent.test_mirror import handle

from contraflow.agent.attachment import ORDER_SIZE, Attachment
from contraflow.agent.codec import Introduction
from contraflow.agent.link import EngineLink
from contraflow.agent.mirror import MirroredHandle
from contraflow.agent.retention import PASSES_IN_TTL, SETTLE_SECONDS, Retention
from contraflow.core.errors import EngineNotAttached
from contraflow.core.fleet import Engine
from contraflow.core.handle import State
from contraflow.core.retention import Policy
from contraflow.v1 import engine_link_service_pb2 as pb
from contraflow.v1 import handle_pb2
from contraflow.wire.convert import duration

TTL = 160.0
TICK = TTL / PASSES_IN_TTL
POLICY = Policy(budget_share=0.5, ttl=TTL, max_idle=400.0)
DECODE = replace(engine("e"), num_blocks=10)  # handles have two blocks each


@dataclass
class World:
    """An engine that says what the test says, and the policy for it."""

    policy: Policy = POLICY
    engine: Engine = DECODE
    clock: ManualClock = field(default_factory=ManualClock)
    told: list[MirroredHandle] = field(default_factory=list)
    renewals: list[tuple[int, int]] = field(default_factory=list)
    first_seen: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.retention = Retention(
            lambda: [self.attachment] if self.attachment.link else [],
            self.policy,
            self.clock,
            lambda renewed, not_renewed: self.renewals.append((renewed, not_renewed)),
        )
        self.attachment = Attachment(
            self.engine, self.clock, lambda outcome, report: None, self.observe
        )
        self.attach()

    def observe(self, one: MirroredHandle) -> None:
        self.told.append(one)
        self.retention.note(one)

    def attach(self, *names: str) -> None:
        """A link begins; the engine holds these handles, with a whole lease."""
        self.requests: asyncio.Queue[pb.AttachRequest] = asyncio.Queue()
        self.link = EngineLink(1)
        live = [
            replace(handle(name, name, self.clock.now() + TTL), retained_at=self.retained_at(name))
            for name in names
        ]
        self.attachment.linked(self.link, Introduction(self.engine, live))
        self.orders = self.link.orders(self._requests(), self.attachment.on_event)
        self.next: asyncio.Task[pb.AttachResponse] | None = None

    async def _requests(self) -> AsyncIterator[pb.AttachRequest]:
        requests = self.requests
        while True:
            yield await requests.get()

    def retained_at(self, name: str) -> float:
        """When the engine retained it: the first time that the test speaks of it."""
        return self.first_seen.setdefault(name, self.clock.now())

    def update(
        self, name: str, state: State = State.RETAINED, *, ttl: float = TTL, claim: str = ""
    ) -> None:
        """The engine tells of a handle."""
        told = handle_pb2.Handle(
            handle_id=f"e/{name}",
            engine_id="e",
            tenant="acme",
            session_key=name[0],
            num_blocks=2,
            ttl=duration(ttl),
            age=duration(self.clock.now() - self.retained_at(name)),
            state=f"HANDLE_STATE_{state}",
            claim_id=claim,
        )
        self.attachment.on_event(pb.HandleUpdate(handle=told))

    async def quiet(self) -> bool:
        """Whether no order is on its way once everything that can run has run."""
        if self.next is None:
            self.next = asyncio.ensure_future(self._order())
        for _ in range(3):
            for _ in range(20):
                await asyncio.sleep(0)
            if len(self.clock._pending()) > 1:  # not only the one between two passes
                self.clock.advance(SETTLE_SECONDS)
        return not self.next.done()

    async def order(self) -> pb.AttachResponse:
        """The next order."""
        assert not await self.quiet(), "no order came"
        assert self.next is not None
        order, self.next = self.next.result(), None
        return order

    async def _order(self) -> pb.AttachResponse:
        order = await anext(self.orders)
        return await anext(self.orders) if order.HasField("welcome") else order

    def release(self, order: pb.AttachResponse) -> None:
        """The engine obeys."""
        for handle_id in order.release.handle_ids:
            self.update(handle_id.removeprefix("e/"), State.RELEASED)
        result = pb.ReleaseResult(
            call_id=order.release.call_id, handle_ids=order.release.handle_ids
        )
        self.requests.put_nowait(pb.AttachRequest(release_result=result))

    def renew(self, order: pb.AttachResponse, *names: str) -> None:
        """The workers hold these for longer."""
        for name in names:
            self.update(name, ttl=order.renew.ttl.seconds)
        result = pb.RenewResult(
            call_id=order.renew.call_id, handle_ids=[f"e/{name}" for name in names]
        )
        self.requests.put_nowait(pb.AttachRequest(renew_result=result))

    async def pass_time(self, seconds: float) -> None:
        """In ticks, after what is under way."""
        await self.quiet()
        for _ in range(round(seconds / TICK)):
            await self.clock.wait_for_sleepers()
            self.clock.advance(TICK)
            await self.quiet()


@asynccontextmanager
async def running(world: World) -> AsyncIterator[World]:
    task = asyncio.create_task(world.retention.run())
    try:
        yield world
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_what_exceeds_the_budget_is_released_oldest_first() -> None:
    async with running(World()) as world:
        for name in "abc":
            world.update(name)
        order = await world.order()
        assert order.release.handle_ids == ["e/a"]
        world.update("d")
        assert (await world.order()).release.handle_ids == ["e/b"]  # what is ordered counts as gone
        world.release(order)
        assert await world.quiet()
        assert [(one.handle_id, one.release_cause) for one in world.told if one.release_cause] == [
            ("e/a", "BUDGET")
        ]


async def test_a_handle_that_is_about_to_be_superseded_costs_no_other_conversation() -> None:
    async with running(World()) as world:
        world.update("a1")
        world.update("b1")
        assert await world.quiet()
        world.update("b2")
        for _ in range(20):
            await asyncio.sleep(0)
        world.update("b1", State.RELEASED)
        assert await world.quiet()
        assert world.told[-1].release_cause == "SUPERSEDED"


async def test_a_claimed_handle_is_neither_released_nor_renewed() -> None:
    async with running(World()) as world:
        world.update("a", State.CLAIMED, claim="c1")
        for name in "bc":
            world.update(name)
        assert (await world.order()).release.handle_ids == ["e/b"]
        await world.pass_time(TTL / 2 + TICK)
        assert (await world.order()).renew.handle_ids == ["e/c"]


async def test_what_could_not_be_released_is_tried_again() -> None:
    async with running(World()) as world:
        for name in "abc":
            world.update(name)
        order = await world.order()
        # A claim came first.
        world.update("a", State.CLAIMED, claim="c1")
        result = pb.ReleaseResult(call_id=order.release.call_id)
        world.requests.put_nowait(pb.AttachRequest(release_result=result))
        await world.pass_time(TICK)
        assert (await world.order()).release.handle_ids == ["e/b"]


async def test_a_handle_is_renewed_at_half_its_lease_for_as_long_as_it_may_idle() -> None:
    async with running(World()) as world:
        world.update("a")
        began = world.clock.now()
        at: list[float] = []
        while world.clock.now() - began < 1000.0:
            await world.pass_time(TICK)
            world.attachment.expire()
            if not await world.quiet():
                order = await world.order()
                assert order.renew.handle_ids == ["e/a"]
                assert order.renew.ttl == Duration(seconds=160)
                at.append(world.clock.now() - began)
                world.renew(order, "a")
        assert [round(one / TICK) for one in at] == [8, 16, 24, 32]
        assert world.told[-1].state is State.EXPIRED
        assert world.renewals == [(1, 0)] * 4


async def test_no_order_is_repeated_while_its_answer_is_due() -> None:
    async with running(World()) as world:
        world.update("a")
        await world.pass_time(TTL / 2 + TICK)
        order = await world.order()
        await world.pass_time(2 * TICK)
        assert await world.quiet()
        world.renew(order)  # not confirmed by all workers
        await world.pass_time(TICK)
        assert (await world.order()).renew.handle_ids == ["e/a"]
        assert world.renewals == [(0, 1)]


async def test_so_many_renewals_are_under_way_at_a_time_and_one_that_hangs_holds_up_no_other() -> (
    None
):
    names = [f"a{number}" for number in range(2 * ORDER_SIZE)]
    async with running(World(engine=replace(DECODE, num_blocks=100 * ORDER_SIZE))) as world:
        for name in names:
            world.update(name)
        await world.pass_time(TTL / 2 + TICK)
        order = await world.order()
        first = [one.removeprefix("e/") for one in order.renew.handle_ids]
        assert first == names[:ORDER_SIZE]
        assert await world.quiet()
        # The workers hold all but one for longer: that one keeps the whole answer back.
        for name in first[1:]:
            world.update(name, ttl=order.renew.ttl.seconds)
        rest = await world.order()
        assert len(rest.renew.handle_ids) == ORDER_SIZE - 1
        assert await world.quiet()
        world.renew(rest, *(one.removeprefix("e/") for one in rest.renew.handle_ids))
        assert (await world.order()).renew.handle_ids == [f"e/{names[-1]}"]


async def test_a_handle_that_a_new_link_brings_with_little_of_its_lease_is_renewed_at_once() -> (
    None
):
    async with running(World()) as world:
        world.update("a", ttl=TTL / 4)
        assert (await world.order()).renew.handle_ids == ["e/a"]


async def test_nothing_is_renewed_while_the_engine_drains() -> None:
    async with running(World()) as world:
        world.update("a")
        world.attachment.drain(True)
        await world.pass_time(TTL / 2 + 2 * TICK)
        assert await world.quiet()
        world.attachment.drain(False)
        await world.pass_time(TICK)
        assert (await world.order()).renew.handle_ids == ["e/a"]


async def test_an_engine_that_is_to_be_emptied_keeps_nothing_until_it_is_back_in_service() -> None:
    async with running(World()) as world:
        world.attachment.drain(True, emptying=True)
        world.update("a", State.CLAIMED, claim="c1")
        assert await world.quiet()
        world.update("b")
        assert (await world.order()).release.handle_ids == ["e/b"]
        world.update("b", State.RELEASED)
        world.update("a")  # its claim was given back
        assert (await world.order()).release.handle_ids == ["e/a"]
        world.update("a", State.RELEASED)
        world.attachment.drain(False)
        world.update("c")
        assert await world.quiet()
        causes = [one.release_cause for one in world.told if one.state is State.RELEASED]
        assert causes == ["ORDERED", "ORDERED"]


async def test_a_handle_keeps_its_age_over_links_and_failed_orders_are_tried_on_the_next() -> None:
    policy = replace(POLICY, max_idle=120.0)
    async with running(World(policy)) as world:
        world.update("a")
        await world.pass_time(TTL / 2 + TICK)
        await world.order()
        world.link.end(EngineNotAttached("gone"))
        assert world.attachment.unlinked(world.link)
        world.attach("a", "b")  # attached again, with the age that it had
        await world.pass_time(TTL / 2 + TICK)
        assert (await world.order()).renew.handle_ids == ["e/b"]
