"""Prefill's blocks are held for as long as decode may read them, and read no longer."""

from __future__ import annotations

import pickle
import time
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.engines.vllm_scheduler.engine import Engine, a_worker
from tests.engines.vllm_scheduler.registry import case
from tests.engines.vllm_scheduler.turns import (
    PROMPT,
    TOLD,
    for_backward_leg,
    for_decode_leg,
    prefilled,
    retained,
)
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import HeartbeatInfo

from contraflow.core.handle import State
from contraflow.core.transfer_params import HOLD_EXTENSION, HOLD_UNTIL, OURS, for_plain_prefill
from contraflow_connector.holds import Hold
from contraflow_connector.vllm_compat import (
    NixlConnectorMetadata,
    NixlPullConnectorWorker,
    holds_of,
)
from contraflow_connector.worker import ContraflowWorker

START = 5000.0
AHEAD = 1000.0
"""Seconds that the owner's clock is ahead of the reader's."""


@case
def prefill_says_until_when_it_holds_its_blocks_and_what_heartbeats_do() -> None:
    engine = Engine("p1")
    request = engine.request(PROMPT, for_plain_prefill() | {OURS: TOLD.to_json()})
    engine.allocate(request, 0)
    _, params = engine.finish(request)
    assert params is not None
    assert engine.step().reqs_to_send == {request.request_id: params[HOLD_UNTIL]}
    assert abs(params[HOLD_UNTIL] - time.perf_counter() - 30) < 20
    worker = a_worker(request.request_id, 0.0)
    worker._lease_extension = 20
    assert params[HOLD_EXTENSION] == 20
    before = time.perf_counter()
    worker._handle_heartbeat(request.request_id)
    assert worker._reqs_to_send[request.request_id] >= before + params[HOLD_EXTENSION]


@case
def workers_learn_until_when_they_may_read_either_way() -> None:
    answer = prefilled()
    decode = Engine("d2")
    forward = decode.request(PROMPT, for_decode_leg(answer))
    assert decode.ask(forward) == (len(PROMPT), True)
    metadata = pickle.loads(pickle.dumps(decode.allocate(forward, len(PROMPT))))
    assert holds_of(metadata) == {forward.request_id: Hold(answer[HOLD_UNTIL], 20.0)}
    assert holds_of(decode.step()) == {}

    owner, handle = retained()
    prefill = Engine("p2")
    backward = prefill.request([*PROMPT, 5, 6, 7, 8], for_backward_leg(owner))
    tokens = handle.num_tokens
    assert prefill.ask(backward) == (tokens, True)
    (hold,) = holds_of(prefill.allocate(backward, tokens)).values()
    (claimed,) = owner.handles()
    assert claimed.claim is not None
    assert hold == Hold(claimed.claim.hold_until)


@case
def decode_does_not_read_what_nobody_says_to_hold() -> None:
    for key, value in ((HOLD_UNTIL, None), (HOLD_UNTIL, "soon"), (HOLD_EXTENSION, "long")):
        engine = Engine("d1")
        request = engine.request(PROMPT, for_decode_leg(prefilled()) | {key: value})
        assert engine.ask(request) == (0, False)


@case
def a_lease_that_reaches_the_workers_late_lasts_as_if_heartbeats_had_extended_it() -> None:
    engine = Engine("p1")
    request = engine.request(PROMPT, for_plain_prefill())
    engine.allocate(request, 0)
    engine.finish(request)
    handle_request_id = "of-a-handle"
    late = time.perf_counter() + 15  # 15 of 30 seconds after the end of the request
    engine.half._reqs_need_send = {request.request_id: late, handle_request_id: late}
    metadata = engine.step()
    assert metadata.reqs_to_send == {
        request.request_id: metadata.scheduler_clock + 20,
        handle_request_id: late,
    }


def a_reader(until: float) -> ContraflowWorker:
    """A decode worker that reads blocks of p1/r1 which are held for so many seconds."""
    worker = a_worker("none", 1e9)
    remote = SimpleNamespace(engine_id="p1", request_id="r1")
    worker._recving_metadata = {"mine": SimpleNamespace(remote=remote)}
    worker._holds = {"mine": Hold(START + AHEAD + until, 20.0)}
    worker._engine_clock_offset = {"p1": AHEAD}
    worker._clock_errors = {"p1": 0.0}
    worker._engine_last_active = {}
    worker._remote_agents = {"p1": {(0, 0): "p1-0", (0, 1): "p1-1"}}
    worker._ensure_handshake = lambda *_: None
    worker._hb_handshake_notif_only = False
    worker.nixl_wrapper = mock.Mock()
    return worker


def beat(worker: ContraflowWorker, *request_ids: str, after: float = 0.0) -> None:
    """A heartbeat is due."""
    metadata = NixlConnectorMetadata()
    metadata.heartbeat_by_engine = {"p1": HeartbeatInfo(set(request_ids), "127.0.0.1", 9, 2)}
    at(after, worker._send_heartbeats, metadata)


def at(after: float, function: Any, *args: Any) -> Any:
    """Call it so many seconds after the start."""
    with mock.patch("time.perf_counter", return_value=START + after):
        return function(*args)


@case
def a_read_that_ends_after_the_blocks_may_be_freed_has_failed() -> None:
    assert not at(28.0, a_reader(until=30.0)._too_late, "mine")
    assert at(30.0, a_reader(until=30.0)._too_late, "mine")


@case
def heartbeats_that_were_sent_let_a_read_last_longer() -> None:
    worker = a_reader(until=30.0)
    nixl = worker.nixl_wrapper
    beat(worker, "r1", "r2", after=20.0)
    assert worker.nixl_wrapper is nixl
    assert sorted(call.args[0] for call in nixl.send_notif.call_args_list) == ["p1-0", "p1-1"]
    assert not at(38.0, worker._too_late, "mine")
    worker = a_reader(until=30.0)
    beat(worker, "r1", after=20.0)
    assert at(40.0, worker._too_late, "mine")


@case
def heartbeats_that_were_not_sent_do_not() -> None:
    def broken(agent_name: str, notif_msg: bytes) -> None:
        if agent_name == "p1-1":
            raise ConnectionError

    unreachable = a_reader(until=30.0)
    unreachable.nixl_wrapper.send_notif = broken
    beat(unreachable, "r1", after=20.0)
    pending = a_reader(until=30.0)
    pending._ensure_handshake = lambda *_: object()
    beat(pending, "r1", after=20.0)
    others = a_reader(until=30.0)
    beat(others, "r2", after=20.0)
    too_late = a_reader(until=30.0)
    beat(too_late, "r1", after=29.0)
    for worker in (unreachable, pending, others, too_late):
        assert at(31.0, worker._too_late, "mine")


@case
def an_owner_whose_clock_is_known_badly_may_have_let_go_by_that_much_earlier() -> None:
    for error, late in ((0.4, False), (1.1, True)):
        worker = a_reader(until=30.0)
        worker._clock_errors = {"p1": error}
        assert at(28.5, worker._too_late, "mine") is late
    worker = a_reader(until=30.0)
    worker._clock_errors = {"p1": 3.0}
    beat(worker, "r1", after=20.0)
    assert not at(33.0, worker._too_late, "mine")
    worker = a_reader(until=30.0)
    worker._clock_errors = {"p1": 3.0}
    beat(worker, "r1", after=20.0)
    assert at(34.0, worker._too_late, "mine")


@case
def half_of_a_handshake_is_what_the_clock_may_be_off() -> None:
    worker = a_worker("none", 1e9)
    with (
        mock.patch("time.perf_counter", side_effect=(100.0, 104.0)),
        mock.patch.object(NixlPullConnectorWorker, "_nixl_handshake", return_value=({}, 7.0)),
    ):
        assert worker._nixl_handshake("h", 1, 1, "p1", 1, 1, False) == ({}, 7.0)
    assert worker._clock_errors["p1"] == 2.0


@case
def an_owner_whose_clock_is_not_known_can_not_be_believed() -> None:
    worker = a_reader(until=30.0)
    worker._engine_clock_offset = {}
    assert worker._too_late("mine")


@case
def a_lease_that_is_found_to_have_run_out_gets_a_moment_for_heartbeats_under_way() -> None:
    worker = a_worker("r", START + 10)
    worker._lease_extension = 20
    worker.xfer_stats = mock.Mock()

    def reaped(after: float) -> set[str]:
        done: set[str] = set()
        at(after, worker._reap_expired_send_leases, done)
        return done

    # A worker that was stalled for a minute hears of the heartbeats a step later.
    assert reaped(60.0) == set()
    at(60.1, worker._handle_heartbeat, "r")
    assert reaped(62.0) == set()
    # Nobody sends another one.
    assert reaped(81.0) == set()
    assert reaped(81.9) == set()
    assert reaped(82.1) == {"r"}
    events = worker.take_events()
    assert events is not None
    assert events.ends == [("r", State.EXPIRED)]
    assert reaped(83.0) == set()
    assert (worker._reqs_to_send, worker._overdue) == ({}, {})
