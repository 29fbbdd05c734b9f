"""What decode retains, and how that ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.engines.vllm_scheduler.engine import Engine, FakeLink
from tests.engines.vllm_scheduler.model import HAS_GENERATION
from tests.engines.vllm_scheduler.registry import RETURNED, case
from tests.engines.vllm_scheduler.turns import (
    PROMPT,
    TOLD,
    claimed,
    for_decode_leg,
    naive_tip,
    prefilled,
    retained,
    through_codec,
)
from vllm.v1.outputs import KVConnectorOutput

from contraflow.core.handle import Handle, State
from contraflow.core.instructions import Instructions
from contraflow.core.transfer_params import OURS, for_plain_decode, has_remote_blocks
from contraflow_connector.events import WorkerEvents
from contraflow_connector.orders import claimed_params
from contraflow_connector.vllm_compat import EXPIRY_MARGIN_SECONDS, WorkerReport, releases_of


@case
def decode_retains_a_handle_for_the_agent_only() -> None:
    engine = Engine("d1")
    if HAS_GENERATION:
        engine.half._registration_generation = 4
    request = engine.request(PROMPT, for_decode_leg(prefilled()))
    assert engine.ask(request)[0] == len(PROMPT)
    engine.allocate(request, len(PROMPT))
    assert engine.finish(request, (5, 6, 7)) == (True, None)
    (handle,) = engine.handles()
    everything = [*PROMPT, 5, 6]
    assert handle.num_tokens == len(everything) == handle.params["remote_num_tokens"]
    assert handle.num_blocks == 7
    assert handle.proof.tip.hex() == naive_tip(everything)
    assert (handle.tenant, handle.session_key, handle.turn_id) == ("acme", "0" * 32, "t1")
    assert engine.step().reqs_to_send == {request.request_id: handle.deadline}
    grant = claimed(engine)
    assert grant.claim is not None
    params = through_codec(claimed_params(grant, EXPIRY_MARGIN_SECONDS))
    RETURNED["decode"] = params
    assert has_remote_blocks(params)
    assert params["remote_blocks_expiry_time"] == grant.claim.start_by + EXPIRY_MARGIN_SECONDS
    assert params.get("remote_registration_generation") == (4 if HAS_GENERATION else None)
    assert OURS not in params


@case
def scenario_16_what_ran_ahead_is_not_proven() -> None:
    engine = Engine("d1")
    request = engine.request(PROMPT, for_plain_decode() | {OURS: TOLD.to_json()})
    engine.allocate(request, 0)
    assert engine.finish(request, (5, 6, 7), ahead=2) == (True, None)
    (handle,) = engine.handles()
    assert handle.num_tokens == len(PROMPT) + 2


@case
def blocks_that_nobody_can_claim_are_freed() -> None:
    link: Any
    for told, link in ((Instructions(), FakeLink()), (TOLD, None)):
        engine = Engine("d1")
        engine.half._link = link
        request = engine.request(PROMPT, for_plain_decode() | {OURS: told.to_json()})
        engine.allocate(request, 0)
        assert engine.finish(request) == (True, None)
        assert engine.handles() == []
        assert releases_of(engine.step()) == (request.request_id,)


@case
def a_request_with_neither_flag_is_known_to_the_workers() -> None:
    engine = Engine("d1")
    request = engine.request(PROMPT, for_plain_decode() | {OURS: TOLD.to_json()})
    assert engine.ask(request) == (0, False)
    assert request.request_id not in engine.allocate(request, 0).reqs_in_batch
    engine.finish(request)
    metadata = engine.step()
    assert request.request_id in metadata.reqs_in_batch
    assert request.request_id in metadata.reqs_to_send


@case
def a_read_ends_the_handle() -> None:
    engine, handle = retained()
    claimed(engine)
    changes: list[Handle] = []
    engine.half._retained.subscribe(changes.append)
    report = WorkerReport(WorkerEvents([(handle.request_id, State.READ)]))
    both = report.aggregate(WorkerReport(WorkerEvents([(handle.request_id, State.READ)])))
    engine.half.update_connector_output(
        KVConnectorOutput(finished_sending={handle.request_id}, kv_connector_worker_meta=both)
    )
    assert [change.state for change in changes] == [State.READ]
    assert engine.handles() == []


@case
def released_ids_reach_the_workers_and_come_back() -> None:
    engine, handle = retained()
    engine.step()
    assert engine.half._retained.release([handle.handle_id]) == [handle.handle_id]
    assert releases_of(engine.step()) == (handle.request_id,)
    assert releases_of(engine.step()) == ()
    ended = KVConnectorOutput(
        finished_sending={handle.request_id},
        kv_connector_worker_meta=WorkerReport(WorkerEvents([(handle.request_id, State.RELEASED)])),
    )
    engine.half.update_connector_output(ended)
    assert engine.handles() == []


@case
def retained_blocks_yield_to_whoever_needs_them() -> None:
    engine, handle = retained()
    free = SimpleNamespace(blocks=100)
    engine.half.block_pool = SimpleNamespace(get_num_free_blocks=lambda: free.blocks)
    assert releases_of(engine.step()) == ()
    # Above the floor, but a request that has asked gets no blocks, and so waits.
    free.blocks = 20
    asking = engine.request(PROMPT, for_plain_decode())
    engine.ask(asking)
    engine.allocate(asking, 0)
    assert releases_of(engine.step()) == ()
    engine.ask(engine.request(PROMPT, for_plain_decode()))
    assert releases_of(engine.step()) == (handle.request_id,)
    # Below the floor.
    engine, handle = retained()
    free.blocks = 14
    engine.half.block_pool = SimpleNamespace(get_num_free_blocks=lambda: free.blocks)
    claimed(engine)
    assert releases_of(engine.step()) == ()
    engine.half._retained.return_claim("c1")
    assert releases_of(engine.step()) == (handle.request_id,)
