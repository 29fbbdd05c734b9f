"""Leases that are renewed: by the workers, by all of them, and only forward."""

from __future__ import annotations

import pickle
from unittest import mock

from tests.engines.vllm_scheduler.engine import a_worker
from tests.engines.vllm_scheduler.model import config
from tests.engines.vllm_scheduler.registry import case
from tests.engines.vllm_scheduler.turns import retained
from vllm.v1.outputs import KVConnectorOutput

from contraflow.core.handle import State
from contraflow_connector.vllm_compat import WorkerReport, renewals_of


@case
def a_lease_is_renewed_once_the_workers_hold_to_it() -> None:
    engine, handle = retained()
    engine.step()
    answers: list[list[str]] = []
    engine.half._retained.renew([handle.handle_id], 10_000.0, answers.append)
    assert renewals_of(engine.step()).keys() == {handle.request_id}
    assert renewals_of(engine.step()) == {}
    engine.half._retained.renew([handle.handle_id], 20_000.0, answers.append)
    metadata = engine.step()
    # It travels to the workers as vLLM sends it.
    workers = [a_worker(handle.request_id, handle.deadline), a_worker("another", 1.0)]
    for number, worker in enumerate(workers):
        worker._renew(pickle.loads(pickle.dumps(metadata)))
        events = worker.take_events()
        assert (events is None) == (number == 1)
        if events:
            report = pickle.loads(pickle.dumps(WorkerReport(events)))
            engine.half.update_connector_output(KVConnectorOutput(kv_connector_worker_meta=report))
    assert answers == [[], [handle.handle_id]]
    (renewed,) = engine.handles()
    assert renewed.deadline > handle.deadline + 10_000
    holder, stranger = workers
    assert holder._reqs_to_send[handle.request_id] >= renewed.deadline
    assert stranger._reqs_to_send == {"another": 1.0}
    # Only forward.
    holder._reqs_to_send[handle.request_id] = 1e9
    holder._renew(metadata)
    assert holder._reqs_to_send[handle.request_id] == 1e9


@case
def all_ranks_must_confirm_a_lease() -> None:
    with mock.patch.object(config().parallel_config, "world_size", 2):
        engine, handle = retained()
    engine.step()
    answers: list[list[str]] = []
    engine.half._retained.renew([handle.handle_id], 10_000.0, answers.append)
    metadata = engine.step()
    for confirmed in (handle.deadline, renewals_of(metadata)[handle.request_id]):
        assert engine.handles()[0].deadline == handle.deadline
        worker = a_worker(handle.request_id, handle.deadline)
        worker._renew(metadata)
        events = worker.take_events()
        assert events is not None
        engine.half.update_connector_output(
            KVConnectorOutput(kv_connector_worker_meta=WorkerReport(events))
        )
        assert engine.handles()[0].deadline == confirmed
    assert answers == [[handle.handle_id]]


@case
def a_release_after_some_of_several_readers_have_read_leaves_nothing_of_it() -> None:
    worker = a_worker("r", 1e9)
    worker.transfer_topo = object()
    worker.nixl_wrapper = mock.Mock(get_new_notifs=lambda: {"reader-0": [b"r:2"]})
    assert worker._get_new_notifs() == set()
    assert worker.consumer_notification_counts_by_req == {"r": 1}
    worker._release(("r",))
    events = worker.take_events()
    assert events is not None
    assert events.ends == [("r", State.RELEASED)]
    assert (worker._reqs_to_send, worker._reqs_to_process) == ({}, set())
    assert not worker.consumer_notification_counts_by_req
    assert not worker.expected_consumer_notifications_by_req
