"""The link against a real gRPC server on a unix socket."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.connector_handles import SESSION, ManualTime, a_handle, ask
from tests.support.fake_agent_link import FakeAgentLink, Stream, agent_at

from contraflow.core.errors import Internal
from contraflow.core.fleet import Engine, Role
from contraflow.core.handle import Handle, State
from contraflow.core.transfer_params import Params
from contraflow.v1 import engine_link_service_pb2 as pb
from contraflow.v1 import errors_pb2, handle_pb2
from contraflow.wire.convert import duration, engine_from_proto, proof_from_proto
from contraflow.wire.params import params_from_proto
from contraflow_connector import link as link_module
from contraflow_connector.link import Link
from contraflow_connector.orders import claimed_params
from contraflow_connector.retained import Retained

ENGINE = Engine("e", "nonce", Role.DECODE, "http://h", model="m", block_size=16)
MARGIN = 2.0


def offer(handle: Handle) -> Params:
    return claimed_params(handle, MARGIN)


def nothing(_: object) -> bool:
    return False


class World:
    """An engine whose agent may come and go."""

    def __init__(self, folder: Path) -> None:
        self.target = f"unix:{folder}/agent.sock"
        self.clock = ManualTime()
        self.retained = Retained(self.clock)
        self.link = Link(self.target, ENGINE, self.retained, offer)

    def thread(self) -> threading.Thread:
        return self.link._thread


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(link_module, "_FIRST_DELAY", 0.01)
    monkeypatch.setattr(link_module, "_LAST_DELAY", 0.05)
    world = World(tmp_path)
    yield world
    world.link.close()
    if world.thread().ident is not None:
        world.thread().join(30.0)
    assert not world.thread().is_alive()


@pytest.fixture
def agent(world: World) -> Iterator[FakeAgentLink]:
    with agent_at(world.target) as agent:
        yield agent


def acquire(stream: Stream, call_id: int, claim_id: str, **fields: Any) -> None:
    """Order a claim."""
    order = pb.Acquire(
        call_id=call_id,
        claim_id=claim_id,
        tenant="acme",
        session_key=SESSION,
        start_by=duration(60),
        max_read=duration(10),
    )
    for name, value in fields.items():
        setattr(order, name, value)
    stream.say(acquire=order)


def test_hello_introduces_the_engine_and_its_whole_table(
    world: World, agent: FakeAgentLink
) -> None:
    world.retained.retain(a_handle("r1"), nothing)
    world.retained.retain(a_handle("r2", session="6" * 32, turn_id="t"), nothing)
    world.retained.acquire(ask("c1"))
    world.clock.now += 10
    world.link.start()
    _, hello = agent.linked()
    assert engine_from_proto(hello.engine) == ENGINE
    one, two = hello.handles
    assert (one.handle_id, one.state, one.claim_id) == (
        "e/r1",
        handle_pb2.HANDLE_STATE_CLAIMED,
        "c1",
    )
    assert (two.handle_id, two.state, two.turn_id) == (
        "e/r2",
        handle_pb2.HANDLE_STATE_RETAINED,
        "t",
    )
    assert two.ttl == duration(470)
    assert two.engine_id == "e"


def test_a_claim_is_granted_returned_and_granted_to_the_next(
    world: World, agent: FakeAgentLink
) -> None:
    handle = a_handle("r")
    world.retained.retain(handle, nothing)
    world.link.start()
    stream, _ = agent.linked()
    acquire(stream, 7, "c1")
    assert stream.hear("handle_update").handle.claim_id == "c1"
    result = stream.hear("acquire_result")
    assert (result.call_id, result.grant.handle.handle_id) == (7, "e/r")
    assert proof_from_proto(result.grant.proof) == handle.proof
    assert (result.grant.start_by, result.grant.hold_until) == (duration(60), duration(70))
    assert params_from_proto(result.grant.transfer_params) == {
        **handle.params,
        "remote_blocks_expiry_time": 1060.0 + MARGIN,
        "contraflow_hold_until": 1070.0,
    }
    stream.say(return_order=pb.ReturnOrder(call_id=8, claim_id="c1"))
    update = stream.hear("handle_update").handle
    assert (update.state, update.claim_id) == (handle_pb2.HANDLE_STATE_RETAINED, "")
    assert stream.hear("return_result") == pb.ReturnResult(call_id=8)
    acquire(stream, 9, "c2")
    assert stream.hear("handle_update").handle.claim_id == "c2"
    assert stream.hear("acquire_result").grant.handle.claim_id == "c2"


def test_denials_name_their_reason(world: World, agent: FakeAgentLink) -> None:
    world.retained.retain(a_handle("r"), nothing)
    world.retained.acquire(ask("c1"))
    world.link.start()
    stream, _ = agent.linked()
    for order, reason in (
        ({}, errors_pb2.ERROR_REASON_HANDLE_CLAIMED),
        ({"tenant": "evil"}, errors_pb2.ERROR_REASON_TENANT_MISMATCH),
        ({"produced_by_turn_id": "ab"}, errors_pb2.ERROR_REASON_HANDLE_NOT_FOUND),
    ):
        acquire(stream, 1, "c2", **order)
        denial = stream.hear("acquire_result").denial
        assert denial.reason == reason
        assert denial.message
    stream.say(return_order=pb.ReturnOrder(call_id=2, claim_id="c2"))
    denial = stream.hear("return_result").denial
    assert denial.reason == errors_pb2.ERROR_REASON_CLAIM_NOT_FOUND


def test_a_defect_denies_and_the_link_goes_on(world: World, agent: FakeAgentLink) -> None:
    world.link = Link(world.target, ENGINE, world.retained, lambda _: {"x": object()})
    world.retained.retain(a_handle("r"), nothing)
    world.link.start()
    stream, _ = agent.linked()
    acquire(stream, 1, "c1")
    assert stream.hear("handle_update").handle.state == handle_pb2.HANDLE_STATE_CLAIMED
    # The grant can not be said, so nobody reads: the handle is kept.
    assert stream.hear("handle_update").handle.state == handle_pb2.HANDLE_STATE_RETAINED
    denial = stream.hear("acquire_result").denial
    assert denial.reason == errors_pb2.ERROR_REASON_INTERNAL
    assert "object" not in denial.message


def test_released_handles_are_named_and_freed(world: World, agent: FakeAgentLink) -> None:
    world.retained.retain(a_handle("r1"), nothing)
    world.retained.retain(a_handle("r2"), nothing)
    world.retained.acquire(ask("c"))
    world.link.start()
    stream, _ = agent.linked()
    stream.say(release=pb.Release(call_id=3, handle_ids=["e/r1", "e/r2", "e/r3"]))
    assert stream.hear("handle_update").handle.state == handle_pb2.HANDLE_STATE_RELEASED
    assert stream.hear("release_result") == pb.ReleaseResult(call_id=3, handle_ids=["e/r1"])
    assert world.retained.step() == ("r1",)


def test_an_order_may_be_long(world: World, agent: FakeAgentLink) -> None:
    world.link.start()
    stream, _ = agent.linked()
    unknown = [f"e/{number:01000}" for number in range(5_000)]  # 5 MB: more than gRPC's default
    stream.say(release=pb.Release(call_id=3, handle_ids=unknown))
    assert stream.hear("release_result") == pb.ReleaseResult(call_id=3)


def test_a_renewal_is_answered_after_the_lease_that_the_workers_confirmed(
    world: World, agent: FakeAgentLink
) -> None:
    world.retained.retain(a_handle("r1"), nothing)
    world.link.start()
    stream, _ = agent.linked()
    world.clock.now += 300
    order = pb.Renew(call_id=3, handle_ids=["e/r1", "e/r2"], ttl=duration(480))
    stream.say(renew=order)
    stream.say(renew=pb.Renew(call_id=4))
    assert stream.hear("renew_result") == pb.RenewResult(call_id=4)  # both were heard
    ((request_id, deadline),) = world.retained.renewals().items()
    world.retained.confirmed(request_id, deadline)
    assert stream.hear("handle_update").handle.ttl == duration(480)
    assert stream.hear("renew_result") == pb.RenewResult(call_id=3, handle_ids=["e/r1"])


def test_an_order_to_renew_is_not_answered_on_a_later_link(
    world: World, agent: FakeAgentLink
) -> None:
    world.retained.retain(a_handle("r1"), nothing)
    world.link.start()
    stream, _ = agent.linked()
    world.clock.now += 300
    stream.say(renew=pb.Renew(call_id=1, handle_ids=["e/r1"], ttl=duration(480)))
    stream.say(renew=pb.Renew(call_id=2))
    stream.hear("renew_result")
    stream.end()
    later, hello = agent.linked()
    assert hello.handles[0].ttl == duration(180)
    ((request_id, deadline),) = world.retained.renewals().items()
    world.retained.confirmed(request_id, deadline)
    assert later.hear("handle_update").handle.ttl == duration(480)
    later.say(renew=pb.Renew(call_id=1))
    assert later.hear("renew_result") == pb.RenewResult(call_id=1)


def test_changes_and_reports_are_told_as_they_come(world: World, agent: FakeAgentLink) -> None:
    world.link.report(handle_pb2.PullReport(turn_id="before"))  # nobody to tell
    world.link.start()
    stream, hello = agent.linked(welcome=False)
    assert not hello.handles
    stream.say(welcome=pb.Welcome(attach_epoch=1))
    acquire(stream, 1, "c")  # answered after Welcome was heard
    stream.hear("acquire_result")
    assert world.link.silent_for() == 0.0
    world.retained.retain(a_handle("r1"), nothing)
    world.link.report(handle_pb2.PullReport(turn_id="t"))
    world.retained.retain(a_handle("r2"), lambda _: True)
    world.retained.seen("r2", State.READ)
    world.retained.finished(["r2"])
    assert stream.hear("handle_update").handle.handle_id == "e/r1"
    assert stream.hear("pull_report").turn_id == "t"
    states = [stream.hear("handle_update").handle.state for _ in range(3)]
    assert states == [
        handle_pb2.HANDLE_STATE_RETAINED,
        handle_pb2.HANDLE_STATE_RELEASED,
        handle_pb2.HANDLE_STATE_READ,
    ]


def test_an_agent_that_comes_back_gets_the_whole_table(world: World) -> None:
    assert world.link.silent_for() == float("inf")
    world.link.start()
    with agent_at(world.target) as agent:
        stream, _ = agent.linked()
        acquire(stream, 1, "c")
        stream.hear("acquire_result")
    world.retained.retain(a_handle("r1"), nothing)
    world.retained.acquire(ask("c1"))
    with agent_at(world.target) as agent:
        stream, hello = agent.linked()
        known = {handle.handle_id: handle.claim_id for handle in hello.handles}
        assert known == {"e/r1": "c1"}
        acquire(stream, 2, "c1")
        assert stream.hear("handle_update").handle.claim_id == "c1"
        assert stream.hear("acquire_result").grant.handle.claim_id == "c1"


def test_a_link_that_the_agent_ends_is_made_anew(world: World, agent: FakeAgentLink) -> None:
    world.link.start()
    stream, _ = agent.linked()
    stream.end()
    _, hello = agent.linked()
    assert engine_from_proto(hello.engine) == ENGINE


def test_silence_is_counted_from_the_loss(world: World) -> None:
    world.link.start()
    with agent_at(world.target) as agent:
        stream, _ = agent.linked()
        acquire(stream, 1, "c")
        stream.hear("acquire_result")
    # The loss is noticed before the next attempt.
    with agent_at(world.target) as agent:
        agent.linked(welcome=False)
        world.clock.now += 25
        assert world.link.silent_for() == 25.0


def test_an_agent_that_does_not_listen_gets_the_table_instead_of_a_backlog(
    world: World, agent: FakeAgentLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "_BACKLOG", 4)
    agent.listens = False
    world.link.start()
    agent.links.get(timeout=30.0)
    agent.listens = True
    monkeypatch.undo()  # for the links to come
    many = 40
    for number in range(many):  # 2.5 MB: more than gRPC and the backlog take
        handle = a_handle(f"r{number}", session=f"{number:032x}", turn_id="x" * 65_536)
        world.retained.retain(handle, nothing)
    stream, hello = agent.linked()
    told = [handle.handle_id for handle in hello.handles]
    while len(told) < many:
        told.append(stream.hear("handle_update").handle.handle_id)
    assert told == [f"e/r{number}" for number in range(many)]


def test_close_ends_the_thread(world: World, agent: FakeAgentLink) -> None:
    world.link.start()
    agent.linked()
    world.link.close()
    assert not world.thread().is_alive()
    world.link.close()


def test_close_ends_a_thread_that_never_reached_an_agent(world: World) -> None:
    world.link.close()  # before start
    world.link.start()
    world.thread().join(30.0)
    assert not world.thread().is_alive()


def test_close_between_two_attempts_leaves_no_link_behind(
    world: World, agent: FakeAgentLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, closed = threading.Event(), threading.Event()
    subscribe = world.retained.subscribe

    def late(sink: Any) -> list[Handle]:
        reached.set()
        assert closed.wait(30.0)
        return subscribe(sink)

    monkeypatch.setattr(world.retained, "subscribe", late)
    world.link.start()
    assert reached.wait(30.0)
    # As close(), which finds no call to cancel here.
    world.link._stop.set()
    closed.set()
    world.thread().join(30.0)
    assert not world.thread().is_alive()


def test_only_claims_have_parameters() -> None:
    with pytest.raises(Internal):
        claimed_params(a_handle("r"), MARGIN)
