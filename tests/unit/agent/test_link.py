import asyncio
from collections.abc import AsyncIterator

import pytest

from contraflow.agent import codec
from contraflow.agent.link import MAX_CALLS, Calls, EngineLink, Event
from contraflow.core.errors import (
    EngineIncarnationStale,
    EngineNotAttached,
    EngineUnresponsive,
)
from contraflow.v1 import engine_link_service_pb2 as pb
from contraflow.v1 import handle_pb2


async def test_answers_find_their_calls_in_any_order() -> None:
    calls = Calls()
    (one, first), (two, second) = calls.begin(), calls.begin()
    calls.expect(one, "acquire_result", first)
    calls.expect(two, "acquire_result", second)
    assert calls.answer("acquire_result", pb.AcquireResult(call_id=two))
    assert second.result().call_id == two
    assert not first.done()


async def test_answers_to_nothing_or_of_another_kind_are_refused() -> None:
    calls = Calls()
    one, reply = calls.begin()
    calls.expect(one, "acquire_result", reply)
    assert not calls.answer("acquire_result", pb.AcquireResult(call_id=one + 1))
    assert not calls.answer("return_result", pb.ReturnResult(call_id=one))
    assert calls.answer("acquire_result", pb.AcquireResult(call_id=one))
    assert not calls.answer("acquire_result", pb.AcquireResult(call_id=one))


async def test_an_engine_that_never_answers_is_not_asked_without_end() -> None:
    link = EngineLink(1)
    for _ in range(MAX_CALLS):
        link.call(lambda call_id: codec.return_order(call_id, "c"))
    with pytest.raises(EngineUnresponsive):
        link.call(lambda call_id: codec.return_order(call_id, "c"))


class Stream:
    """What an engine says, one message at a time; ``None`` hangs up."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[pb.AttachRequest | None] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[pb.AttachRequest]:
        while (message := await self.queue.get()) is not None:
            yield message


async def test_welcome_goes_first_and_events_are_heard_in_order() -> None:
    link, stream, events = EngineLink(7), Stream(), list[Event]()
    link.call(lambda call_id: codec.return_order(call_id, "c"))
    orders = link.orders(aiter(stream), events.append)
    assert (await anext(orders)).welcome.attach_epoch == 7
    assert (await anext(orders)).return_order.claim_id == "c"
    update = pb.HandleUpdate(handle=handle_pb2.Handle(handle_id="e/1"))
    report = handle_pb2.PullReport(turn_id="t")
    stream.queue.put_nowait(pb.AttachRequest(handle_update=update))
    stream.queue.put_nowait(pb.AttachRequest(pull_report=report))
    stream.queue.put_nowait(pb.AttachRequest())  # of a later release
    stream.queue.put_nowait(None)
    assert [order async for order in orders] == []
    assert events == [update, report]


async def test_calls_fail_when_the_engine_hangs_up() -> None:
    link, stream = EngineLink(1), Stream()
    reply = link.call(lambda call_id: codec.return_order(call_id, "c"))
    stream.queue.put_nowait(None)
    async for _ in link.orders(aiter(stream), lambda event: None):
        pass
    with pytest.raises(EngineNotAttached):
        await reply
    with pytest.raises(EngineNotAttached):
        link.call(lambda call_id: codec.return_order(call_id, "c"))


async def test_a_link_that_was_taken_over_sends_nothing_more_and_says_why() -> None:
    link = EngineLink(1)
    orders = link.orders(aiter(Stream()), lambda event: None)
    assert (await anext(orders)).HasField("welcome")
    link.call(lambda call_id: codec.return_order(call_id, "c"))
    link.end(EngineIncarnationStale("a later link has taken over"))
    with pytest.raises(EngineIncarnationStale):
        await anext(orders)
