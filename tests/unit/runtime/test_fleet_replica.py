"""The replica: what each event of a watch does to it."""

from __future__ import annotations

import math
from dataclasses import replace

from tests.support.clock import ManualClock

from contraflow.core.fleet import Engine, Role, Session
from contraflow.runtime.fleet_replica import QUIET_SECONDS, FleetReplica
from contraflow.v1 import directory_service_pb2 as pb
from contraflow.v1 import engine_pb2
from contraflow.wire.convert import engine_to_proto, session_to_proto

ENGINE = Engine("e1", "nonce", Role.DECODE, "http://127.0.0.1:1")


def session(handle: str, key: str = "a" * 32) -> Session:
    return Session(key, "e1", "127.0.0.1:2", handle, 100, expires_at=1060.0, retained_at=1000.0)


def engine_event(engine: Engine, revision: int) -> pb.WatchResponse:
    return pb.WatchResponse(engine=engine_to_proto(engine), revision=revision)


def session_event(value: Session, revision: int, now: float) -> pb.WatchResponse:
    return pb.WatchResponse(session=session_to_proto(value, now), revision=revision)


def end(revision: int) -> pb.WatchResponse:
    return pb.WatchResponse(snapshot_end=pb.SnapshotEnd(), revision=revision)


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.replica = FleetReplica(self.clock)
        self.heard: list[str] = []
        self.replica.on_session(lambda value: self.heard.append(value.handle_id))

    def session(self, handle: str, revision: int, key: str = "a" * 32) -> None:
        self.replica.apply(session_event(session(handle, key), revision, self.clock.now()))

    def snapshot(self, revision: int, *handles: str) -> None:
        self.replica.begin()
        self.replica.apply(engine_event(ENGINE, revision))
        for handle in handles:
            self.session(handle, revision)
        self.replica.apply(end(revision))


def test_a_snapshot_is_adopted_at_its_end() -> None:
    world = World()
    replica = world.replica
    replica.begin()
    replica.apply(engine_event(ENGINE, 7))
    world.session("h1", 7)
    assert not replica.engines
    assert not replica.synced.is_set()
    replica.apply(end(7))
    assert replica.engines == {"e1": ENGINE}
    assert replica.sessions["a" * 32] == session("h1")
    assert replica.synced.is_set()
    assert (replica.revision, replica.resume_from) == (7, 7)


def test_what_a_new_snapshot_lacks_is_gone() -> None:
    world = World()
    world.snapshot(7, "h1")
    world.replica.forget_revision()
    world.replica.begin()
    world.replica.apply(end(9))
    assert not world.replica.engines
    assert not world.replica.sessions


def test_a_broken_snapshot_leaves_everything() -> None:
    world = World()
    world.snapshot(7, "h1")
    world.replica.forget_revision()
    world.replica.begin()
    world.session("h9", 9)
    world.snapshot(9, "h2")
    assert world.replica.sessions["a" * 32].handle_id == "h2"


def test_deltas_apply_at_once_and_resume_one_before() -> None:
    world = World()
    world.snapshot(7)
    world.session("h2", 8)
    assert world.replica.sessions["a" * 32].handle_id == "h2"
    assert (world.replica.revision, world.replica.resume_from) == (8, 7)
    world.replica.apply(pb.WatchResponse(progress=pb.Progress(), revision=8))
    assert world.replica.resume_from == 8
    world.replica.apply(pb.WatchResponse(removal=pb.Removal(session_key="a" * 32), revision=9))
    world.replica.apply(pb.WatchResponse(removal=pb.Removal(engine_id="e1"), revision=9))
    assert not world.replica.sessions
    assert not world.replica.engines


def test_hooks_hear_of_new_handles_only() -> None:
    world = World()
    world.snapshot(7, "h1")
    world.replica.forget_revision()
    world.clock.advance(5)
    world.snapshot(8, "h1")
    later = replace(session("h1"), expires_at=1060.1, retained_at=1000.1)
    world.replica.apply(session_event(later, 9, world.clock.now()))
    world.session("h2", 10)
    assert world.heard == ["h1", "h2"]


def test_age_counts_from_the_last_event() -> None:
    world = World()
    assert world.replica.age() == math.inf
    world.snapshot(7)
    world.clock.advance(3)
    assert world.replica.age() == 3


def test_a_view_is_current_while_the_directory_is_heard() -> None:
    world = World()
    assert not world.replica.is_current()
    world.snapshot(7)
    assert world.replica.is_current()
    world.clock.advance(QUIET_SECONDS + 1)
    assert not world.replica.is_current()
    world.replica.apply(pb.WatchResponse(progress=pb.Progress(), revision=7))
    assert world.replica.is_current()


def test_a_view_is_not_current_while_a_snapshot_is_under_way() -> None:
    world = World()
    world.snapshot(7)
    world.replica.forget_revision()
    world.replica.begin()
    world.session("h1", 9)
    assert not world.replica.is_current()
    world.replica.apply(end(9))
    assert world.replica.is_current()


def test_an_engine_whose_role_is_unknown_is_no_engine() -> None:
    world = World()
    world.snapshot(7)
    unknown = engine_pb2.Engine(engine_id="e1", role=engine_pb2.ENGINE_ROLE_UNSPECIFIED)
    world.replica.apply(pb.WatchResponse(engine=unknown, revision=8))
    assert not world.replica.engines


def removal(engine_id: str, revision: int) -> pb.WatchResponse:
    return pb.WatchResponse(removal=pb.Removal(engine_id=engine_id), revision=revision)


def test_an_engine_that_lost_its_registration_is_remembered_for_a_while() -> None:
    world = World()
    world.snapshot(7, "h1")
    world.replica.apply(removal("e1", 8))
    assert not world.replica.engines
    assert world.replica.view({}).vanished == {"e1": ENGINE}
    assert world.replica.known() == [ENGINE]
    world.clock.advance(600.0)
    assert not world.replica.vanished()


def test_an_engine_that_a_snapshot_lacks_is_remembered_too() -> None:
    world = World()
    world.snapshot(7)
    world.replica.forget_revision()
    world.replica.begin()
    world.replica.apply(end(9))
    assert world.replica.vanished() == {"e1": ENGINE}


def test_an_engine_that_is_back_is_not_vanished() -> None:
    world = World()
    world.snapshot(7)
    world.replica.apply(removal("e1", 8))
    world.replica.apply(engine_event(ENGINE, 9))
    assert not world.replica.vanished()
    assert world.replica.known() == [ENGINE]


def test_a_successor_at_the_same_place_ends_the_memory() -> None:
    world = World()
    world.snapshot(7)
    world.replica.apply(removal("e1", 8))
    successor = Engine("e2", "other", Role.DECODE, ENGINE.endpoint)
    world.replica.apply(engine_event(successor, 9))
    assert not world.replica.vanished()


def test_another_rank_of_the_same_endpoint_is_no_successor() -> None:
    world = World()
    world.snapshot(7)
    world.replica.apply(removal("e1", 8))
    neighbour = Engine("e2", "other", Role.DECODE, ENGINE.endpoint, dp_rank=1)
    world.replica.apply(engine_event(neighbour, 9))
    assert world.replica.vanished() == {"e1": ENGINE}
