"""The races of a claim, each in one exact order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from tests.support.clock import ManualClock
from tests.support.fake_engine_link import engine

from contraflow.agent.attachment import Attachment
from contraflow.agent.codec import Granted, Introduction, handle_from_proto
from contraflow.agent.link import EngineLink
from contraflow.agent.mirror import MirroredHandle, ReleaseCause
from contraflow.core.errors import (
    EngineNotAttached,
    EngineUnresponsive,
    HandleClaimed,
    HandleNotFound,
)
from contraflow.core.handle import ClaimRequest, State
from contraflow.v1 import engine_link_service_pb2 as pb
from contraflow.v1 import errors_pb2, handle_pb2
from contraflow.wire.convert import duration

REQUEST = ClaimRequest("c1", "acme", "key", start_by=60.0, max_read=10.0)
CLAIMED = handle_pb2.Handle(
    handle_id="decode-1/1",
    engine_id="decode-1",
    state=handle_pb2.HANDLE_STATE_CLAIMED,
    claim_id="c1",
    ttl=duration(480),
)


@dataclass
class World:
    """An attachment whose engine says what the test says."""

    clock: ManualClock = field(default_factory=ManualClock)
    requests: asyncio.Queue[pb.AttachRequest] = field(default_factory=asyncio.Queue)
    told: list[MirroredHandle] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.attachment = Attachment(
            engine(), self.clock, lambda outcome, report: None, self.told.append
        )
        self.link = EngineLink(1)
        self.attachment.linked(self.link, Introduction(engine(), []))
        self.orders = self.link.orders(self._requests(), self.attachment.on_event)

    async def _requests(self) -> AsyncIterator[pb.AttachRequest]:
        while True:
            yield await self.requests.get()

    def ask(self, timeout: float = 60.0) -> asyncio.Task[Granted]:
        return asyncio.create_task(self.attachment.acquire(REQUEST, timeout))

    async def order(self) -> pb.AttachResponse:
        order = await anext(self.orders)
        return await anext(self.orders) if order.HasField("welcome") else order

    def grant(self, order: pb.AttachResponse, start_by: float = 60.0) -> None:
        grant = pb.Grant(
            handle=CLAIMED, start_by=duration(start_by), hold_until=duration(start_by + 10)
        )
        result = pb.AcquireResult(call_id=order.acquire.call_id, grant=grant)
        self.requests.put_nowait(pb.AttachRequest(acquire_result=result))

    def deny(self, order: pb.AttachResponse, reason: errors_pb2.ErrorReason) -> None:
        denial = pb.Denial(reason=reason, message="no")
        result = pb.AcquireResult(call_id=order.acquire.call_id, denial=denial)
        self.requests.put_nowait(pb.AttachRequest(acquire_result=result))


async def cancelled(task: asyncio.Task[Granted]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_grant_that_comes_when_its_caller_has_left_is_given_back() -> None:
    world = World()
    call = world.ask()
    order = await world.order()
    await cancelled(call)
    world.grant(order)
    assert (await world.order()).return_order.claim_id == "c1"


async def test_a_grant_that_comes_as_its_caller_leaves_is_given_back() -> None:
    world = World()
    call = world.ask()
    order = await world.order()
    # Answered, but the caller is cancelled before it runs again.
    world.link._calls.answer(
        "acquire_result",
        pb.AcquireResult(call_id=order.acquire.call_id, grant=pb.Grant(handle=CLAIMED)),
    )
    await cancelled(call)
    assert (await world.order()).return_order.claim_id == "c1"


async def test_a_grant_that_a_retry_waits_for_is_kept() -> None:
    world = World()
    first = world.ask()
    first_order = await world.order()
    await cancelled(first)
    retry = world.ask()
    second_order = await world.order()
    world.grant(first_order)
    world.grant(second_order)
    assert (await retry).handle.claim_id == "c1"
    # Nothing but the next acquire is on its way.
    world.ask()
    assert (await world.order()).HasField("acquire")


async def test_a_claim_that_was_handed_out_is_not_given_back_for_a_repeated_call() -> None:
    world = World()
    first = world.ask()
    world.grant(await world.order())
    await first
    repeated = world.ask()
    order = await world.order()
    await cancelled(repeated)
    world.grant(order)
    world.ask()
    assert (await world.order()).HasField("acquire")


async def test_time_that_the_answer_took_is_not_promised() -> None:
    world = World()
    call = world.ask()
    order = await world.order()
    world.clock.advance(7.0)
    world.grant(order)
    granted = await call
    assert (granted.start_by, granted.hold_until) == (53.0, 63.0)


async def test_a_repeated_grant_has_the_time_that_the_engine_says_is_left() -> None:
    world = World()
    call = world.ask()
    world.grant(await world.order())
    await call
    world.clock.advance(30.0)
    repeated = world.ask()
    order = await world.order()
    world.clock.advance(1.0)
    world.grant(order, start_by=30.0)
    granted = await repeated
    assert (granted.start_by, granted.hold_until) == (29.0, 39.0)


async def test_a_grant_that_comes_when_its_time_is_over_is_given_back() -> None:
    world = World()
    call = world.ask()
    order = await world.order()
    world.clock.advance(60.0)
    world.grant(order)
    with pytest.raises(EngineUnresponsive):
        await call
    assert (await world.order()).return_order.claim_id == "c1"


async def test_denials_are_the_engines_and_leave_nothing() -> None:
    world = World()
    for reason, kind in (
        (errors_pb2.ERROR_REASON_HANDLE_CLAIMED, HandleClaimed),
        (errors_pb2.ERROR_REASON_HANDLE_NOT_FOUND, HandleNotFound),
    ):
        call = world.ask()
        world.deny(await world.order(), reason)
        with pytest.raises(kind):
            await call
    assert len(world.attachment._claims) == 0


async def test_a_claim_whose_link_broke_is_given_back_once_the_engine_says_that_it_lives() -> None:
    world = World()
    call = world.ask()
    await world.order()
    living = handle_from_proto(CLAIMED, world.clock.now())
    assert living is not None
    second = EngineLink(2)
    known = Introduction(engine(), [living])
    world.attachment.linked(second, known)  # a takeover: the first link ends in the same moment
    with pytest.raises(EngineNotAttached):
        await call
    orders = second.orders(world._requests(), world.attachment.on_event)
    assert (await anext(orders)).HasField("welcome")
    assert (await anext(orders)).return_order.claim_id == "c1"


def update(state: State, claim_id: str = "", ttl: int = 480) -> pb.HandleUpdate:
    handle = handle_pb2.Handle(
        handle_id=CLAIMED.handle_id,
        engine_id=CLAIMED.engine_id,
        state=f"HANDLE_STATE_{state}",
        claim_id=claim_id,
        ttl=duration(ttl),
    )
    return pb.HandleUpdate(handle=handle)


def states(world: World) -> list[str]:
    return [handle.state for handle in world.told]


async def test_every_change_of_a_handle_is_told_once() -> None:
    world = World()
    changes = [
        update(State.RETAINED), update(State.CLAIMED, "c1"), update(State.CLAIMED, "c1"),
        update(State.RETAINED), update(State.CLAIMED, "c2"), update(State.READ),
        update(State.READ),
    ]  # fmt: skip
    for change in changes:
        world.attachment.on_event(change)
    assert states(world) == ["RETAINED", "CLAIMED", "RETAINED", "CLAIMED", "READ"]


@pytest.mark.parametrize(
    ("state", "claim_id", "end"),
    [(State.RETAINED, "", State.EXPIRED), (State.CLAIMED, "c1", State.LAPSED)],
)
async def test_a_lease_that_runs_out_is_told_as_an_end(
    state: State, claim_id: str, end: State
) -> None:
    world = World()
    world.attachment.on_event(update(state, claim_id, ttl=5))
    world.clock.advance(5)
    world.attachment.expire()
    world.attachment.on_event(update(end))  # the engine says so too
    assert states(world) == [state, end]
    assert world.told[-1].claim_id == ""


async def test_handles_that_a_new_link_does_not_bring_are_told_as_lost() -> None:
    world = World()
    world.attachment.on_event(update(State.RETAINED))
    kept = handle_from_proto(update(State.RETAINED).handle, world.clock.now())
    assert kept is not None
    world.attachment.linked(EngineLink(2), Introduction(engine(), [kept]))
    assert states(world) == ["RETAINED", "RETAINED"]
    world.attachment.linked(EngineLink(3), Introduction(engine(), []))
    assert states(world) == ["RETAINED", "RETAINED", "LOST"]


async def test_a_drain_outlives_links_and_an_older_agents_word() -> None:
    world = World()
    world.attachment.drain(True)
    world.attachment.linked(EngineLink(2), Introduction(engine(), []))
    assert world.attachment.engine.draining
    world.attachment.drain(False)
    world.attachment.resume_drain()
    assert not world.attachment.engine.draining


def named(name: str, state: State, session: str = "s", ttl: int = 480) -> pb.HandleUpdate:
    """A handle of a session."""
    handle = handle_pb2.Handle(
        handle_id=f"decode-1/{name}",
        engine_id="decode-1",
        session_key=session,
        state=f"HANDLE_STATE_{state}",
        ttl=duration(ttl),
    )
    return pb.HandleUpdate(handle=handle)


async def test_why_a_handle_was_released_is_known() -> None:
    world = World()
    for name, session in (("1", "s"), ("2", "s"), ("3", "t"), ("4", "u")):
        world.attachment.on_event(named(name, State.RETAINED, session))
    world.attachment.on_event(named("1", State.RELEASED))
    world.attachment.on_event(named("3", State.RELEASED, "t"))
    call = asyncio.create_task(
        world.attachment.release(["decode-1/4", "decode-1/5"], 60.0, ReleaseCause.ORDERED)
    )
    order = await world.order()
    world.attachment.on_event(named("4", State.RELEASED, "u"))
    result = pb.ReleaseResult(call_id=order.release.call_id, handle_ids=["decode-1/4"])
    world.requests.put_nowait(pb.AttachRequest(release_result=result))
    assert await call == ["decode-1/4"]
    causes = [one.release_cause for one in world.told if one.state is State.RELEASED]
    assert causes == [ReleaseCause.SUPERSEDED, ReleaseCause.ROOM, ReleaseCause.ORDERED]


async def test_why_a_handle_was_released_that_was_claimed_is_known() -> None:
    world = World()
    claimed, released = named("1", State.CLAIMED), named("1", State.RELEASED)
    claimed.handle.claim_id = "c1"
    world.attachment.on_event(claimed)
    call = asyncio.create_task(world.attachment.release(["decode-1/1"], 60.0, ReleaseCause.ORDERED))
    result = pb.ReleaseResult(call_id=(await world.order()).release.call_id)
    world.requests.put_nowait(pb.AttachRequest(release_result=result))
    assert await call == []
    world.attachment.on_event(released)  # the claim came back
    assert world.told[-1].release_cause is ReleaseCause.ORDERED


async def test_a_lease_that_was_renewed_is_told() -> None:
    world = World()
    world.attachment.on_event(named("1", State.RETAINED, ttl=100))
    world.clock.advance(60.0)
    world.attachment.on_event(named("1", State.RETAINED, ttl=40))
    world.attachment.on_event(named("1", State.RETAINED, ttl=100))
    assert [one.expires_at for one in world.told] == [1100.0, 1160.0]
