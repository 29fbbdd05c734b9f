"""What reaches a connector from outside of its engine: transfer parameters of requests, and the
agent's orders. Nothing raises out of a hook, and nothing is read that can not be."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from contraflow.core.chain import Chain, Context
from contraflow.core.instructions import Instructions, Tip
from contraflow.core.transfer_params import HOLD_EXTENSION, HOLD_UNTIL, OURS, REMOTE_KEYS
from contraflow.v1 import engine_link_service_pb2 as pb
from contraflow_connector.decisions import Decisions
from contraflow_connector.orders import Orders, claimed_params
from contraflow_connector.retained import Retained
from tests.fuzz.json_texts import changed, one_changed
from tests.fuzz.messages import sent
from tests.support.complaints import no_complaints
from tests.support.connector_handles import SESSION, TOKENS, ManualTime, a_handle
from tests.support.fake_engine_link import engine

SIZE = 16
CONTEXT = Context("m", SIZE)


@dataclass
class Asked:
    """A request as an engine has it."""

    kv_transfer_params: Any
    request_id: str = "r"
    prompt_token_ids: list[int] = field(default_factory=lambda: [*TOKENS, 1])

    @property
    def all_token_ids(self) -> Sequence[int]:
        return [*self.prompt_token_ids, 2]

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)


class Half(Decisions):
    """A scheduler half without an engine."""

    def __init__(self) -> None:
        self.engine_id = "e"
        self.block_size = SIZE
        self.decoder_kv_blocks_ttl = 480.0
        self._reqs_in_batch = set()
        self._reqs_need_send = {"r": 1480.0}
        self._get_remote_prefill_token_count = lambda tokens: tokens
        self.retained = Retained(ManualTime())
        self._prepare(self.retained, bidirectional=True, trimmable=True, num_blocks=100)

    def _context(self, request: Any) -> Context | None:
        return CONTEXT

    def _found_in_cache(self, request: Any) -> int | None:
        return None

    def _free_blocks(self) -> int | None:
        return 50

    def _may_pull(self) -> bool:
        return True

    def _lease_extension(self) -> float:
        return 20.0


PROMPT = [*TOKENS, 1]
BLOCKS = list(range(3))
COMMON = {
    "remote_block_ids": [BLOCKS],
    "remote_engine_id": "x",
    "remote_request_id": "y",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
    "remote_num_tokens": len(PROMPT),
    "remote_blocks_expiry_time": 2000.0,
    HOLD_UNTIL: 2000.0,
    HOLD_EXTENSION: 20.0,
}
FORWARD = {
    **COMMON,
    "do_remote_prefill": True,
    "do_remote_decode": False,
    OURS: {
        **Instructions(session_key=SESSION, tenant="acme").to_json(),
        "tip": Tip(Chain(CONTEXT).tip(PROMPT, len(PROMPT)), len(PROMPT)).to_json(),
    },
}
BACKWARD = {
    **COMMON,
    "do_remote_prefill": False,
    "do_remote_decode": True,
    "remote_num_tokens": len(TOKENS),
    OURS: Instructions(
        session_key=SESSION,
        tenant="acme",
        decision="PULL",
        pull_blocks=100,
        proof=Chain(CONTEXT).proof(TOKENS, len(TOKENS)),
    ).to_json(),
}
RETAINING = {"do_remote_prefill": False, "do_remote_decode": False, OURS: FORWARD[OURS]}
keys = st.sampled_from([*FORWARD, "pp_size", "dcp_size", "_remote_blocks_processed", "proof"])


def _read(text: str) -> Any:
    try:
        return json.loads(text)  # NaN and Infinity included, as vLLM reads them
    except (ValueError, RecursionError):
        return {}


def of(params: dict[str, Any]) -> st.SearchStrategy[Any]:
    return (changed(params, keys) | one_changed(params)).map(_read)


@given(
    st.sampled_from([FORWARD, BACKWARD, RETAINING]).flatmap(of),
    st.integers(0, 48),
    st.integers(0, 41),
    st.booleans(),
)
def test_any_parameters_pass_through_all_hooks(
    params: Any, local: int, external: int, delay: bool
) -> None:
    half, request = Half(), Asked(params)
    half._note_waiting(request)
    for _ in range(2):  # a request that waits is asked about again
        if half._admit(request, local) and _would_be_read(params):
            assert _is_readable(params), params
    half._settle(request, external)
    half._make_room()
    own = {**COMMON, "remote_block_ids": [BLOCKS], "remote_num_tokens": 42}
    half._finish(request, delay, dict(own) if delay else None)
    half._forget(request.request_id)
    assert not half._reads
    assert not half._chains


def test_what_is_not_changed_is_read() -> None:
    for params in (FORWARD, BACKWARD):
        copy = json.loads(json.dumps(params))
        assert Half()._admit(Asked(copy), 0)
        assert _would_be_read(copy)


@pytest.mark.parametrize(
    "garbage",
    [{"remote_block_ids": []}, {"remote_block_ids": None}, {"remote_engine_id": ["x"]},
     {"remote_port": "5600"}, {"tp_size": "1"}, {HOLD_UNTIL: float("nan")}, {HOLD_UNTIL: 10**400}],
)  # fmt: skip
def test_of_what_can_not_be_read_nobody_is_told(garbage: dict[str, Any]) -> None:
    """vLLM asserts that there are blocks, and looks the engine up among the keys of a dict."""
    half, request = Half(), Asked({**json.loads(json.dumps(FORWARD)), **garbage})
    assert not half._admit(request, 0)
    half._settle(request, 0)
    if HOLD_UNTIL not in garbage:
        assert not set(REMOTE_KEYS) & request.kv_transfer_params.keys()


def _would_be_read(params: Any) -> bool:
    """By vLLM, once it is admitted."""
    if not isinstance(params, dict):
        return False
    return bool(
        params.get("do_remote_prefill")
        or (params.get("do_remote_decode") and params.get("remote_block_ids"))
    )


def _is_readable(params: dict[str, Any]) -> bool:
    """As vLLM computes with it."""
    blocks, port = params["remote_block_ids"], params["remote_port"]
    hold = params.get(HOLD_UNTIL)
    return (
        all(isinstance(params[key], str) for key in REMOTE_KEYS[1:4])
        and all(type(params.get(key, 1)) is int for key in ("tp_size", "pp_size", "dcp_size"))
        and type(port) is int
        and 0 < port < 2**16
        and isinstance(blocks, list)
        and any(blocks)
        and all(type(block) is int and block >= 0 for group in blocks for block in group)
        and isinstance(hold, int | float)
        and abs(hold) < float("inf")
    )


VALUES = {
    "session_key": st.just(SESSION),
    "tenant": st.sampled_from(["acme", "other"]),
    "claim_id": st.sampled_from(["c1", "c2", ""]),
    "handle_ids": st.sampled_from(["e/r1", "e/r2", "e/", "x/p1", "e/p1"]),
    "message_digests": st.sampled_from(["d1", ""]),
    "hint_handle_id": st.sampled_from(["e/r1", "e/gone"]),
    "call_id": st.integers(1, 3),
}
ORDER = pb.DESCRIPTOR.message_types_by_name["AttachResponse"]
ANSWERS = {
    "acquire": "acquire_result",
    "return_order": "return_result",
    "release": "release_result",
    "renew": "renew_result",
}


SEEDS = (
    pb.AttachResponse(
        acquire=pb.Acquire(
            call_id=1, claim_id="c1", tenant="acme", session_key=SESSION,
            message_digests=["d1"], start_by=Duration(seconds=60), max_read=Duration(seconds=10),
        )
    ),
    pb.AttachResponse(return_order=pb.ReturnOrder(call_id=2, claim_id="c1")),
    pb.AttachResponse(release=pb.Release(call_id=3, handle_ids=["e/r1"])),
    pb.AttachResponse(renew=pb.Renew(call_id=1, handle_ids=["e/r2"], ttl=Duration(seconds=900))),
)  # fmt: skip


@given(st.lists(sent(ORDER, VALUES, SEEDS), max_size=6))
def test_any_orders_are_answered_and_the_table_is_whole(orders: list[bytes]) -> None:
    said: list[pb.AttachRequest] = []
    clock = ManualTime()
    retained = Retained(clock)
    orderly = Orders(engine("e"), retained, lambda handle: claimed_params(handle, 1.0), said.append)
    retained.subscribe(orderly.changed)
    for number in (1, 2):
        retained.retain(a_handle(f"r{number}", message_digest=f"d{number}"), lambda _: False)
    retained.hand_over("p1")
    due: list[tuple[str, int]] = []
    with no_complaints():
        for data in orders:
            try:
                order = pb.AttachResponse.FromString(data)
            except Exception:
                continue  # gRPC ends such a stream
            orderly.obey(order)
            if (kind := order.WhichOneof("message")) in ANSWERS:
                due.append((ANSWERS[kind], getattr(order, kind).call_id))
        clock.now += 10_000.0
        retained.step()
        retained.finished(["r1", "r2", "p1"])  # workers let go, and renewals are settled
    answers = [(kind, getattr(one, kind).call_id) for one in said if (kind := _kind(one))]
    assert sorted(answers) == sorted(due)
    with retained._lock:
        assert not retained._table.live()


def _kind(message: pb.AttachRequest) -> str:
    kind = message.WhichOneof("message")
    return kind if kind in ANSWERS.values() else ""
