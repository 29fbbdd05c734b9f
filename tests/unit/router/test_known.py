"""Which keys a router takes for live when it identifies a turn."""

from __future__ import annotations

from tests.support.clock import ManualClock

from contraflow.core.fleet import Engine, Role, Session
from contraflow.core.plan import Policy
from contraflow.router.affinity import Homes, Load, Produced, Replies
from contraflow.router.planning import Planner
from contraflow.runtime.fleet_replica import FleetReplica

KEY = "k" * 32


def test_a_key_is_live_while_a_registered_engine_may_hold_its_handle() -> None:
    clock, homes, replies = ManualClock(), Homes(9), Replies(9)
    replica = FleetReplica(clock)
    planner = Planner(replica, homes, replies, Load(), Policy())
    record = Session(KEY, "d1", "agent:1", "d1/h", 299, clock.now() + 10, clock.now())
    assert not planner.is_live(KEY)

    replica.sessions[KEY] = record
    assert not planner.is_live(KEY)
    replica.engines["d1"] = Engine("d1", "n", Role.DECODE, "http://127.0.0.1:1")
    assert planner.is_live(KEY)
    del replica.sessions[KEY]
    assert not planner.is_live(KEY)

    homes.remember(KEY, "d1")
    assert planner.is_live(KEY)
    homes.remember(KEY, "gone")
    assert not planner.is_live(KEY)
    replica.sessions[KEY] = record
    assert planner.is_live(KEY)

    assert planner.produced(KEY, "r") is None
    replies.remember(KEY, "r", Produced("turn-1", "d1"))
    assert planner.produced(KEY, "r") == Produced("turn-1", "d1")
