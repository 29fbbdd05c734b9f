"""From prefill to decode: what is handed over, what is pulled of it, and what is not."""

from __future__ import annotations

import json

from tests.engines.vllm_scheduler.engine import Engine
from tests.engines.vllm_scheduler.model import HAS_GENERATION
from tests.engines.vllm_scheduler.registry import RETURNED, case
from tests.engines.vllm_scheduler.turns import (
    PROMPT,
    TOLD,
    for_decode_leg,
    naive_tip,
    prefilled,
    through_codec,
)

from contraflow.core.transfer_params import OURS, for_decode, for_plain_prefill
from contraflow_connector.vllm_compat import releases_of


@case
def prefill_hands_over_tip_and_generation() -> None:
    params = prefilled()
    RETURNED["prefill"] = params
    assert params["do_remote_prefill"] is True
    assert params["remote_num_tokens"] == len(PROMPT)
    assert params[OURS]["tip"] == {"digest": naive_tip(PROMPT), "num_tokens": len(PROMPT)}
    assert params[OURS]["pull"]["outcome"] == "UNSPECIFIED"
    assert params[OURS]["pull"]["computed_tokens"] == len(PROMPT)
    assert ("remote_registration_generation" in params) == HAS_GENERATION
    assert through_codec(for_decode(params)) == json.loads(json.dumps(params))


@case
def decode_pulls_what_the_tip_proves() -> None:
    engine = Engine("d1")
    answer = prefilled() | ({"remote_registration_generation": 3} if HAS_GENERATION else {})
    request = engine.request(PROMPT, for_decode_leg(answer))
    assert engine.ask(request, 32) == (len(PROMPT) - 32, True)
    metadata = engine.allocate(request, len(PROMPT) - 32)
    (read,) = metadata.reqs_to_recv.values()
    assert read.remote.engine_id == "p1"
    assert [*map(list, read.remote.block_ids)] == [*map(list, answer["remote_block_ids"])]
    if HAS_GENERATION:
        assert read.remote.registration_generation == 3
    assert engine.ask(request, 32) == (0, False)


@case
def scenario_30_decode_refuses_another_tip() -> None:
    good = for_decode_leg(prefilled())
    other_tokens = for_decode_leg(prefilled([*PROMPT[:-1], 1]))
    shorter = for_decode_leg(prefilled(PROMPT[:-1]))
    no_tip = {**good, OURS: TOLD.to_json()}
    strange = {**good, OURS: {**TOLD.to_json(), "tip": {"digest": 1}}}
    nothing = {key: value for key, value in good.items() if key != OURS}
    for params in (other_tokens, shorter, no_tip, strange, nothing):
        engine = Engine("d1")
        request = engine.request(PROMPT, params)
        assert engine.ask(request) == (0, False)
        (read,) = engine.allocate(request, 0).reqs_to_recv.values()
        # Nothing is read, and the prefill engine is told to free its blocks.
        assert not any(read.local_block_ids)


@case
def scenario_07_blocks_that_decode_will_not_read_are_freed_on_command() -> None:
    engine = Engine("p1")
    request = engine.request(PROMPT, for_plain_prefill() | {OURS: TOLD.to_json()})
    engine.allocate(request, 0)
    engine.finish(request)
    blocks_id = f"p1/{request.request_id}"
    assert engine.half._retained.release([blocks_id]) == [blocks_id]
    assert releases_of(engine.step()) == (request.request_id,)
    assert engine.half._retained.release([blocks_id]) == []
