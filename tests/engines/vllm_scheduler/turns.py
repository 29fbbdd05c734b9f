"""The two legs of a turn as router and agent make them, and what they leave behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.engines.vllm_scheduler.engine import Engine
from tests.engines.vllm_scheduler.model import BLOCK, config

from contraflow.core.chain import Chain, Context
from contraflow.core.handle import ClaimRequest, Handle
from contraflow.core.instructions import Instructions
from contraflow.core.transfer_params import (
    OURS,
    for_decode,
    for_plain_decode,
    for_plain_prefill,
    for_pulling_prefill,
)
from contraflow.v1 import transfer_params_pb2
from contraflow.wire.params import params_from_proto, params_to_proto
from contraflow_connector.orders import claimed_params
from contraflow_connector.vllm_compat import EXPIRY_MARGIN_SECONDS

PROMPT = [7 + i % 200 for i in range(100)]
TOLD = Instructions(tenant="acme", session_key="0" * 32, turn_id="t1", message_digest="ab")


def through_codec(params: dict[str, Any]) -> dict[str, Any]:
    """As between connector, agent and router."""
    wire = params_to_proto(params).SerializeToString()
    return params_from_proto(transfer_params_pb2.TransferParams.FromString(wire))


def prefilled(tokens: Sequence[int] = PROMPT) -> dict[str, Any]:
    """What a prefill engine returns."""
    engine = Engine("p1")
    request = engine.request(tokens, for_plain_prefill())
    assert engine.ask(request) == (0, False)
    engine.allocate(request, 0)
    delay, params = engine.finish(request)
    assert delay
    assert params is not None
    return params


def for_decode_leg(answer: dict[str, Any]) -> dict[str, Any]:
    """What the router makes of it for the decode engine."""
    params = for_decode(answer)
    tip = params.pop(OURS).get("tip")
    ours = TOLD.to_json() | ({"tip": tip} if tip else {})
    return through_codec(params) | {OURS: ours}


def retained(
    tokens: Sequence[int] = PROMPT, output: Sequence[int] = (5, 6, 7), *, sliding: bool = False
) -> tuple[Engine, Handle]:
    """A decode engine that holds a handle."""
    engine = Engine("d1", sliding=sliding)
    request = engine.request(tokens, for_plain_decode() | {OURS: TOLD.to_json()})
    assert engine.ask(request) == (0, False)
    engine.allocate(request, 0)
    assert engine.finish(request, output) == (True, None)
    (handle,) = engine.handles()
    return engine, handle


def claimed(engine: Engine) -> Handle:
    request = ClaimRequest("c1", TOLD.tenant, TOLD.session_key, 60.0, 10.0, (TOLD.message_digest,))
    return engine.half._retained.acquire(request)


def for_backward_leg(engine: Engine, **use: Any) -> dict[str, Any]:
    """What the router makes of a claimed handle for the prefill engine; ``use``: what that shall
    do with it."""
    handle = claimed(engine)
    params = through_codec(claimed_params(handle, EXPIRY_MARGIN_SECONDS))
    told = Instructions(
        "acme", "0" * 32, "t2", "c1", proof=handle.proof, **{"decision": "PULL", **use}
    )
    return for_pulling_prefill(params) | {OURS: told.to_json()}


def naive_tip(tokens: Sequence[int]) -> str:
    context = Context(config().model_config.model, BLOCK)
    return Chain(context).tip(tokens, len(tokens)).hex()
