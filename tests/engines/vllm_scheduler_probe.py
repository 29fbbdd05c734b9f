"""Runs inside an engine environment: our scheduler half on the vLLM found there, step by step.

vLLM's scheduler class, configuration, requests and metadata are real; there are no workers.
Prints a JSON object: the version, what each case came to ("ok" or a traceback), and the
parameters that a prefill and a decode engine returned.
"""

from __future__ import annotations

import json
import logging
import pickle
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import vllm
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlHandshakePayload
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request, RequestStatus

from contraflow.core.chain import Chain, Context
from contraflow.core.handle import ClaimRequest, Handle, State
from contraflow.core.instructions import Instructions
from contraflow.core.transfer_params import (
    OURS,
    REMOTE_KEYS,
    for_decode,
    for_plain_decode,
    for_plain_prefill,
    for_pulling_prefill,
    has_remote_blocks,
)
from contraflow.v1 import transfer_params_pb2
from contraflow.wire.params import params_from_proto, params_to_proto
from contraflow_connector.events import WorkerEvents
from contraflow_connector.link import claimed_params
from contraflow_connector.plugin import register
from contraflow_connector.scheduler import ContraflowScheduler
from contraflow_connector.settings import Settings
from contraflow_connector.vllm_compat import (
    EXPIRY_MARGIN_SECONDS,
    WorkerReport,
    chain_context,
    describe_engine,
    releases_of,
    renewals_of,
)
from contraflow_connector.worker import ContraflowWorker

BLOCK = 16
WINDOW = 48
PROMPT = [7 + i % 200 for i in range(100)]
TOLD = Instructions(tenant="acme", session_key="0" * 32, turn_id="t1", message_digest="ab")
HAS_GENERATION = tuple(int(part) for part in vllm.__version__.split(".")[:2]) >= (0, 33)

CASES: dict[str, Callable[[], None]] = {}
RETURNED: dict[str, Any] = {}


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES[function.__name__] = function
    return function


def vllm_config(folder: Path) -> VllmConfig:
    shape = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 256,
        "max_position_embeddings": 1024,
    }
    (folder / "config.json").write_text(json.dumps(shape))
    config = VllmConfig(
        model_config=ModelConfig(
            model=str(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=1024
        ),
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=True),
        scheduler_config=SchedulerConfig(
            max_num_seqs=4,
            max_num_batched_tokens=1024,
            max_model_len=1024,
            is_encoder_decoder=False,
        ),
        parallel_config=ParallelConfig(),
        device_config=DeviceConfig("cpu"),
        kv_transfer_config=KVTransferConfig(
            kv_connector="ContraflowConnector",
            kv_role="kv_both",
            kv_connector_extra_config={
                "bidirectional_kv_xfer": True,
                "kv_recompute_threshold": 0,
            },
        ),
    )
    # Without its compiled half vLLM finds no platform, and so no hybrid manager.
    config.scheduler_config.disable_hybrid_kv_cache_manager = False
    return config


def kv_cache_config(*, sliding: bool) -> KVCacheConfig:
    shape = {"block_size": BLOCK, "num_kv_heads": 2, "head_size": 16, "dtype": torch.float32}
    groups = [KVCacheGroupSpec(["layers.0"], FullAttentionSpec(**shape))]
    if sliding:
        window = SlidingWindowSpec(**shape, sliding_window=WINDOW)
        groups.append(KVCacheGroupSpec(["layers.1"], window))
    return KVCacheConfig(num_blocks=100, kv_cache_tensors=[], kv_cache_groups=groups)


class FakeLink:
    """An agent that is there, and hears the reports."""

    def __init__(self) -> None:
        self.reports: list[Any] = []

    def silent_for(self) -> float:
        return 0.0

    def report(self, report: Any) -> None:
        self.reports.append(report)

    def close(self) -> None:
        pass


class Engine:
    """A scheduler half, and the steps that vLLM's scheduler would take with it."""

    def __init__(self, engine_id: str, *, sliding: bool = False, agent: str = "") -> None:
        role = "prefill" if engine_id.startswith("p") else "decode"
        settings = Settings(agent, "http://127.0.0.1:9" if agent else "", role)
        config = kv_cache_config(sliding=sliding)
        self.half = ContraflowScheduler(CONFIG, engine_id, config, settings)
        self.groups = len(config.kv_cache_groups)
        self.link: Any = FakeLink()
        if not agent:
            setattr(self.half, "_link", self.link)  # noqa: B010 -- not a Link
        self.made = 0

    def request(self, tokens: Sequence[int], params: dict[str, Any] | None) -> Request:
        """A request that has arrived. Parameters come as JSON, as over HTTP."""
        self.made += 1
        extra = {"kv_transfer_params": json.loads(json.dumps(params))} if params else None
        sampling = SamplingParams(max_tokens=32, extra_args=extra)
        request = Request(f"{self.half.engine_id}-r{self.made}", list(tokens), sampling, None)
        self.half.on_new_request(request)
        return request

    def ask(self, request: Request, local: int = 0) -> tuple[int | None, bool]:
        return self.half.get_num_new_matched_tokens(request, local)

    def allocate(self, request: Request, external: int) -> Any:
        """Blocks for the whole prompt; returns the metadata of the next step."""
        count = -(-request.num_prompt_tokens // BLOCK)
        groups = tuple([KVCacheBlock(block_id=i + 1) for i in range(count)] for _ in self.each())
        self.half.update_state_after_alloc(request, KVCacheBlocks(groups), external)
        return self.step()

    def each(self) -> range:
        return range(self.groups)

    def step(self) -> Any:
        return self.half.build_connector_meta(SimpleNamespace())

    def finish(
        self, request: Request, output: Sequence[int] = (5,), *, ahead: int = 0
    ) -> tuple[bool, dict[str, Any] | None]:
        """The request ends by length, all but its last token with KV (and ``ahead`` more)."""
        request.append_output_token_ids(list(output))
        request.num_computed_tokens = len(request.all_token_ids) - 1 + ahead
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED
        count = -(-request.num_computed_tokens // BLOCK)
        blocks = tuple([10 * (group + 1) + i for i in range(count)] for group in self.each())
        return self.half.request_finished(request, blocks)

    def handles(self) -> list[Handle]:
        return self.half._retained._table.live()


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


def for_backward_leg(engine: Engine, *, least: int = 1) -> dict[str, Any]:
    """What the router makes of a claimed handle for the prefill engine."""
    handle = claimed(engine)
    params = through_codec(claimed_params(handle, EXPIRY_MARGIN_SECONDS))
    told = Instructions("acme", "0" * 32, "t2", "c1", "PULL", "", least, handle.proof)
    return for_pulling_prefill(params) | {OURS: told.to_json()}


def naive_tip(tokens: Sequence[int]) -> str:
    context = Context(CONFIG.model_config.model, BLOCK)
    return Chain(context).tip(tokens, len(tokens)).hex()


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
def prefill_trims_the_pull_to_what_is_proven() -> None:
    handle_tokens = [*PROMPT, 5, 6]
    for common in (15, 16, 17, 95, 96, 97, 102):
        owner, _ = retained()
        prompt = [*handle_tokens[:common], *([250] * 20)]
        usable = common if common == len(handle_tokens) else common // BLOCK * BLOCK
        engine = Engine("p1")
        request = engine.request(prompt, for_backward_leg(owner))
        assert engine.ask(request) == ((usable, True) if usable else (0, False)), common
        for local in (32, 0):  # asked many times while the request waits
            more = usable - local
            assert engine.ask(request, local) == ((more, True) if more > 0 else (0, False))
        metadata = engine.allocate(request, usable)
        if not usable:
            assert metadata.reqs_to_recv == {}
            continue
        (read,) = metadata.reqs_to_recv.values()
        assert [len(group) for group in read.remote.block_ids] == [-(-usable // BLOCK)]
        assert read.remote.num_tokens == usable
        answer = engine.finish(request)[1]
        assert answer is not None
        pull = answer[OURS]["pull"]
        assert (pull["outcome"], pull["pulled_tokens"]) == ("PULLED", usable)
        assert pull["offered_tokens"] == len(handle_tokens)
        assert pull["computed_tokens"] == len(prompt) - usable
        assert engine.link.reports[0].claim_id == "c1"


@case
def scenario_17_a_repeated_prompt_leaves_a_token_to_compute() -> None:
    owner, _ = retained()
    engine = Engine("p1")
    request = engine.request(PROMPT, for_backward_leg(owner))
    assert engine.ask(request)[0] == 96
    owner, _ = retained(PROMPT[:96], (PROMPT[96],))
    request = engine.request(PROMPT[:96], for_backward_leg(owner))
    assert engine.ask(request) == (95, True)
    (read,) = engine.allocate(request, 95).reqs_to_recv.values()
    assert [len(group) for group in read.remote.block_ids] == [6]


def declined(engine: Engine, params: dict[str, Any], outcome: str, *, local: int = 0) -> None:
    request = engine.request([*PROMPT, 5, 6, 8], params)
    assert engine.ask(request, local) == (0, False)
    assert engine.allocate(request, 0).reqs_to_recv == {}
    assert not set(REMOTE_KEYS) & set(request.kv_transfer_params)
    answer = engine.finish(request)[1]
    assert answer is not None
    assert answer[OURS]["pull"]["outcome"] == outcome, answer[OURS]
    assert answer[OURS]["tip"]["num_tokens"] == 103


@case
def what_is_declined_is_kept() -> None:
    owner, _ = retained([1, 2, *PROMPT])
    declined(Engine("p1"), for_backward_leg(owner), "DECLINED_MISMATCH")
    params = for_backward_leg(retained()[0])
    ours = params[OURS]
    declined(Engine("p1"), {**params, OURS: {**ours, "proof": None}}, "DECLINED_NO_PROOF")
    declined(Engine("p1"), params, "DECLINED_SMALL", local=102)
    declined(Engine("p1"), {**params, OURS: {**ours, "min_pull_tokens": 103}}, "DECLINED_SMALL")
    short = {**params, "remote_block_ids": [params["remote_block_ids"][0][:6]]}
    declined(Engine("p1"), short, "DECLINED_MISMATCH")
    strange: Any
    for strange in ([[]], [["1"] * 7], [None], [params["remote_block_ids"][0], []]):
        declined(Engine("p1"), {**params, "remote_block_ids": strange}, "DECLINED_MISMATCH")
    declined(Engine("p1"), {**params, "remote_num_tokens": None}, "DECLINED_MISMATCH")
    for key in REMOTE_KEYS[1:]:
        declined(Engine("p1"), {**params, key: None}, "DECLINED_UNSUPPORTED")
    engine = Engine("p1")
    engine.half.kv_recompute_threshold = 200
    declined(engine, params, "DECLINED_SMALL")
    engine = Engine("p1")
    engine.half._bidirectional = False
    declined(engine, params, "DECLINED_UNSUPPORTED")


@case
def a_failed_load_is_not_asked_for_again() -> None:
    owner, _ = retained()
    engine = Engine("p1")
    request = engine.request([*PROMPT, 5, 6, 8], for_backward_leg(owner))
    assert engine.ask(request) == (102, True)
    engine.allocate(request, 102)
    engine.half.update_connector_output(KVConnectorOutput(failed_recving={request.request_id}))
    assert engine.ask(request) == (0, False)
    assert engine.allocate(request, 0).reqs_to_recv == {}
    answer = engine.finish(request)[1]
    assert answer is not None
    assert answer[OURS]["pull"]["outcome"] == "FAILED"
    assert answer[OURS]["pull"]["computed_tokens"] == 103


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
def scenario_07_blocks_that_decode_will_not_read_are_freed_on_command() -> None:
    engine = Engine("p1")
    request = engine.request(PROMPT, for_plain_prefill() | {OURS: TOLD.to_json()})
    engine.allocate(request, 0)
    engine.finish(request)
    blocks_id = f"p1/{request.request_id}"
    assert engine.half._retained.release([blocks_id]) == [blocks_id]
    assert releases_of(engine.step()) == (request.request_id,)
    assert engine.half._retained.release([blocks_id]) == []


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
    with mock.patch.object(CONFIG.parallel_config, "world_size", 2):
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


def a_worker(request_id: str, deadline: float) -> ContraflowWorker:
    """A worker half without memory or peers, which holds one request's blocks."""
    worker = ContraflowWorker.__new__(ContraflowWorker)
    worker._events = WorkerEvents()
    worker._reqs_to_send = {request_id: deadline}
    return worker


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
def scenario_29_a_sliding_window_is_pulled_whole_or_not_at_all() -> None:
    owner, handle = retained(sliding=True)
    full, window = handle.params["remote_block_ids"]
    assert len(full) == 7
    assert len(window) < 7
    assert not handle.proof.trimmable
    params = for_backward_leg(owner)
    engine = Engine("p1", sliding=True)
    request = engine.request([*PROMPT, 5, 6, 8], params)
    assert engine.ask(request) == (102, True)
    (read,) = engine.allocate(request, 102).reqs_to_recv.values()
    assert [list(group) for group in read.remote.block_ids] == [full, window]
    engine = Engine("p1", sliding=True)
    request = engine.request([*PROMPT, 5, 9, 9], params)
    assert engine.ask(request) == (0, False)
    assert engine.allocate(request, 0).reqs_to_recv == {}
    engine = Engine("d1", sliding=True)
    request = engine.request(PROMPT, for_plain_decode() | {OURS: TOLD.to_json()})
    engine.allocate(request, 0)
    assert engine.finish(request, ahead=2) == (True, None)
    assert engine.handles() == []  # the window has moved beyond what is proven


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
def registering_memory_starts_the_link_once() -> None:
    engine = Engine("d1", agent="unix:/nowhere/agent.sock")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        engine.half.side_channel_host, engine.half.side_channel_port = free.getsockname()
    try:
        links = []
        for memory, generation in ((b"one", 1), (b"one", 1), (b"two", 2)):
            payload = NixlHandshakePayload("hash", memory)
            engine.half.set_xfer_handshake_metadata({(0, 0): payload})
            links.append(engine.half._link)
            request = engine.request(PROMPT, for_plain_prefill())
            engine.allocate(request, 0)
            answer = engine.finish(request)[1]
            assert answer is not None
            expected = generation if HAS_GENERATION else None
            assert answer.get("remote_registration_generation") == expected
        link = links[0]
        assert link is not None
        assert links == [link] * 3
        described = link._engine
        assert described.vllm_version == vllm.__version__
        assert described.connector_version == (15 if HAS_GENERATION else 14)
        assert (described.trimmable, described.bidirectional) == (True, True)
        assert described.num_blocks == 100
        assert described.compatibility_class
    finally:
        engine.half.shutdown()


@case
def scenario_15_a_rank_says_its_number_and_its_own_port() -> None:
    _, of_rank_0 = retained()
    with mock.patch.object(CONFIG.parallel_config, "data_parallel_index", 3):
        _, of_rank_3 = retained()
        described = describe_engine(
            CONFIG,
            Settings("", "", "decode"),
            engine_id="e",
            boot_nonce="n",
            num_blocks=1,
            bidirectional=True,
            trimmable=True,
            compatibility_hash="h",
        )
    assert described.dp_rank == 3
    assert of_rank_3.params["remote_port"] == of_rank_0.params["remote_port"] + 3


@case
def scenario_23_engines_of_one_layout_are_of_one_class() -> None:
    def described(role: str = "prefill", **fields: Any) -> Any:
        told: dict[str, Any] = {"bidirectional": True, "trimmable": True, **fields}
        told.setdefault("compatibility_hash", "h")
        settings = Settings("", "", role)
        return describe_engine(
            CONFIG, settings, engine_id="e", boot_nonce="n", num_blocks=1, **told
        )

    plain = described()
    assert plain.kv_dtype == "float32"  # of the model, for the cache's is "auto"
    # Plans ask for these by themselves.
    assert described("decode").compatibility_class == plain.compatibility_class
    assert described(bidirectional=False).compatibility_class == plain.compatibility_class
    classes = {
        plain.compatibility_class,
        described(trimmable=False).compatibility_class,
        described(compatibility_hash="i").compatibility_class,
    }
    changes = [
        (CONFIG.model_config, "model", "another"),
        (CONFIG.model_config, "dtype", torch.bfloat16),
        (CONFIG.cache_config, "cache_dtype", "fp8"),
        (CONFIG.cache_config, "block_size", 2 * BLOCK),
        (CONFIG.parallel_config, "tensor_parallel_size", 2),
    ]
    for part, name, value in changes:
        with mock.patch.object(part, name, value):
            classes.add(described().compatibility_class)
    with mock.patch("contraflow_connector.vllm_compat.NIXL_CONNECTOR_VERSION", 99):
        classes.add(described().compatibility_class)
    assert len(classes) == 3 + len(changes) + 1


@case
def scenario_22_adapters_salts_and_images_are_told_apart() -> None:
    def image(identifier: str) -> dict[str, Any]:
        place = PlaceholderRange(offset=BLOCK, length=BLOCK + 4)
        spec = MultiModalFeatureSpec(
            data=None, modality="image", identifier=identifier, mm_position=place
        )
        return {"mm_features": [spec]}

    kinds: list[dict[str, Any]] = [
        {},
        {"lora_request": LoRARequest("x", 1, "/x")},
        {"lora_request": LoRARequest("y", 2, "/y"), "cache_salt": "x"},
        {"cache_salt": "x"},
        image("cat"),
        image("dog"),
    ]
    sampling = SamplingParams(max_tokens=32)
    requests = [Request("r", PROMPT, sampling, None, **kind) for kind in kinds]
    contexts = [chain_context(CONFIG, request) for request in requests]
    for one, mine in zip(kinds, contexts, strict=True):
        assert mine is not None
        proof = Chain(mine).proof(PROMPT, len(PROMPT))
        for other, theirs in zip(kinds, contexts, strict=True):
            assert theirs is not None
            # What lies before an image is the same with any.
            before = BLOCK if {*one, *other} <= {"mm_features"} else 0
            wanted = len(PROMPT) if one is other else before
            assert Chain(theirs).proven(proof, PROMPT) == wanted, (one, other)


def came_to(run: Callable[[], None]) -> str:
    try:
        run()
    except Exception:
        return traceback.format_exc()
    return "ok"


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    register()
    register()  # as vLLM does in each of its processes, perhaps more than once
    with tempfile.TemporaryDirectory() as folder:
        CONFIG = vllm_config(Path(folder))
        outcomes = {name: came_to(run) for name, run in CASES.items()}
    json.dump({"version": vllm.__version__, "cases": outcomes, "returned": RETURNED}, sys.stdout)
