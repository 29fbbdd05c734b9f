"""From decode back to prefill: what is pulled, trimmed, declined, or fails."""

from __future__ import annotations

from typing import Any

from tests.engines.vllm_scheduler.engine import Engine
from tests.engines.vllm_scheduler.model import BLOCK
from tests.engines.vllm_scheduler.registry import case
from tests.engines.vllm_scheduler.turns import PROMPT, TOLD, for_backward_leg, retained
from vllm.v1.outputs import KVConnectorOutput

from contraflow.core.transfer_params import OURS, REMOTE_KEYS, for_plain_decode


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
    for strange in ([[]], [["1"] * 7], [None]):
        declined(Engine("p1"), {**params, "remote_block_ids": strange}, "DECLINED_UNSUPPORTED")
    strange = [params["remote_block_ids"][0], []]
    declined(Engine("p1"), {**params, "remote_block_ids": strange}, "DECLINED_MISMATCH")
    declined(Engine("p1"), {**params, "remote_num_tokens": None}, "DECLINED_MISMATCH")
    for key in REMOTE_KEYS[1:]:
        declined(Engine("p1"), {**params, key: None}, "DECLINED_UNSUPPORTED")
    for decision in ("RECOMPUTE", ""):
        unwanted = {**params, OURS: {**ours, "decision": decision}}
        declined(Engine("p1"), unwanted, "DECLINED_UNWANTED")
    engine = Engine("p1")
    engine.half._bidirectional = False
    declined(engine, params, "DECLINED_UNSUPPORTED")


@case
def what_the_router_wants_is_pulled_whatever_vllm_would_refuse() -> None:
    for blocks, local, pulled in ((7, 96, 6), (4, 48, 16), (3, 16, 32), (1, 0, 16), (100, 0, 102)):
        owner, _ = retained()
        params = for_backward_leg(owner, pull_blocks=blocks)
        engine = Engine("p1")
        request = engine.request([*PROMPT, 5, 6, 8], params)
        for _ in range(2):  # while the request waits
            assert engine.ask(request, local) == (pulled, True), blocks
        (read,) = engine.allocate(request, pulled).reqs_to_recv.values()
        assert [len(group) for group in read.remote.block_ids] == [min(blocks, 7)]
        assert read.remote.num_tokens == local + pulled
        answer = engine.finish(request)[1]
        assert answer is not None
        pull = answer[OURS]["pull"]
        assert (pull["outcome"], pull["proven_tokens"]) == ("PULLED", 102)
        assert (pull["pulled_tokens"], pull["computed_tokens"]) == (pulled, 103 - local - pulled)
    declined(Engine("p1"), for_backward_leg(retained()[0], pull_blocks=0), "DECLINED_SMALL")


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
    part = {**params, OURS: {**params[OURS], "pull_blocks": 6}}
    engine = Engine("p1", sliding=True)
    request = engine.request([*PROMPT, 5, 6, 8], part)
    assert engine.ask(request) == (0, False)
    assert engine.allocate(request, 0).reqs_to_recv == {}
    engine = Engine("p1", sliding=True)
    request = engine.request([*PROMPT, 5, 9, 9], params)
    assert engine.ask(request) == (0, False)
    assert engine.allocate(request, 0).reqs_to_recv == {}
    engine = Engine("d1", sliding=True)
    request = engine.request(PROMPT, for_plain_decode() | {OURS: TOLD.to_json()})
    engine.allocate(request, 0)
    assert engine.finish(request, ahead=2) == (True, None)
    assert engine.handles() == []  # the window has moved beyond what is proven
