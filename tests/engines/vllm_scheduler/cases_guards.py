"""What must not touch the engine: requests of others, aborts, our own failures."""

from __future__ import annotations

from typing import Any
from unittest import mock

from tests.engines.vllm_scheduler.engine import Engine
from tests.engines.vllm_scheduler.registry import case
from tests.engines.vllm_scheduler.turns import (
    PROMPT,
    TOLD,
    for_backward_leg,
    for_decode_leg,
    prefilled,
    retained,
)
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import RequestStatus

from contraflow.core.chain import Chain
from contraflow.core.transfer_params import HOLD_UNTIL, OURS, for_plain_decode, for_plain_prefill
from contraflow_connector.vllm_compat import releases_of


@case
def requests_of_others_are_as_vllm_has_them() -> None:
    engine = Engine("d1")
    request = engine.request(PROMPT, None)
    assert engine.ask(request) == (0, False)
    engine.allocate(request, 0)
    assert engine.finish(request) == (False, None)
    request = engine.request(PROMPT, for_plain_decode())
    engine.allocate(request, 0)
    delay, params = engine.finish(request)
    assert delay
    assert params is not None
    assert OURS not in params
    assert engine.handles() == []


@case
def an_aborted_request_leaves_nothing() -> None:
    owner, _ = retained()
    for params in (for_backward_leg(owner), for_plain_decode() | {OURS: TOLD.to_json()}):
        engine = Engine("p1")
        request = engine.request(PROMPT, params)
        engine.ask(request)
        request.status = RequestStatus.FINISHED_ABORTED
        assert engine.half.request_finished(request, ([],)) == (False, None)
        assert engine.handles() == []
        assert not engine.half._reads
        assert not engine.half._chains
        assert engine.step().reqs_to_recv == {}


@case
def our_exceptions_stay_inside() -> None:
    for name in ("extend", "tip", "proof", "proven"):
        owner, _ = retained()
        backward, forward = for_backward_leg(owner), for_decode_leg(prefilled())
        with mock.patch.object(Chain, name, side_effect=ZeroDivisionError):
            for params in (backward, forward, for_plain_decode() | {OURS: TOLD.to_json()}):
                engine = Engine("p1" if params.get("do_remote_decode") else "d1")
                request = engine.request([*PROMPT, 5, 6, 8], params)
                tokens, _ = engine.ask(request)
                engine.allocate(request, tokens or 0)
                delay, answer = engine.finish(request)
                assert delay
                if not engine.handles() and answer is None:
                    assert releases_of(engine.step()) == (request.request_id,)
    engine, handle = retained()
    for name in ("_retained", "_reads", "_chains"):
        with mock.patch.object(engine.half, name, None):
            request = engine.request(PROMPT, for_plain_prefill())
            assert engine.ask(request) == (0, False)
            engine.allocate(request, 0)
            engine.half.update_connector_output(
                KVConnectorOutput(finished_sending={"x"}, failed_recving={"y"})
            )
    assert engine.handles() == [handle]


@case
def a_failing_link_costs_no_block() -> None:
    engine = Engine("d1")
    engine.half._retained.subscribe(mock.Mock(side_effect=ZeroDivisionError))
    request = engine.request(PROMPT, for_plain_decode() | {OURS: TOLD.to_json()})
    engine.allocate(request, 0)
    assert engine.finish(request) == (True, None)
    assert len(engine.handles()) == 1
    assert releases_of(engine.step()) == ()


@case
def parameters_that_can_not_be_read_are_not_even_told() -> None:
    garbage: list[dict[str, Any]] = [
        {"remote_block_ids": []},
        {"remote_block_ids": None},
        {"remote_block_ids": "12"},
        {"remote_block_ids": [["1"]]},
        {"remote_request_id": 7},
        {"remote_host": {}},
        {"remote_port": "5600"},
        {"tp_size": "1"},
        {HOLD_UNTIL: None},
    ]
    owner, _ = retained()
    backward, forward = for_backward_leg(owner), for_decode_leg(prefilled())
    for params in (backward, forward):
        for changed in garbage:
            engine = Engine("p1" if params is backward else "d1")
            prompt = [*PROMPT, 5, 6, 7, 8] if params is backward else PROMPT
            request = engine.request(prompt, params | changed)
            assert engine.ask(request) == (0, False)
            metadata = engine.allocate(request, 0)
            # A hold alone that is missing leaves somebody to be told that nobody reads.
            assert metadata.reqs_to_recv == {} or HOLD_UNTIL in changed
