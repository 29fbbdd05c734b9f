"""What an engine says of itself, and what makes the chains of two requests differ."""

from __future__ import annotations

import socket
from typing import Any
from unittest import mock

import torch
import vllm
from tests.engines.vllm_scheduler.engine import Engine
from tests.engines.vllm_scheduler.model import BLOCK, HAS_GENERATION, config
from tests.engines.vllm_scheduler.registry import case
from tests.engines.vllm_scheduler.turns import PROMPT, retained
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlHandshakePayload
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

from contraflow.core.chain import Chain
from contraflow.core.transfer_params import for_plain_prefill
from contraflow_connector.settings import Settings
from contraflow_connector.vllm_compat import chain_context, describe_engine


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
        described = link._orders._engine
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
    with mock.patch.object(config().parallel_config, "data_parallel_index", 3):
        _, of_rank_3 = retained()
        described = describe_engine(
            config(),
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
            config(), settings, engine_id="e", boot_nonce="n", num_blocks=1, **told
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
        (config().model_config, "model", "another"),
        (config().model_config, "dtype", torch.bfloat16),
        (config().cache_config, "cache_dtype", "fp8"),
        (config().cache_config, "block_size", 2 * BLOCK),
        (config().parallel_config, "tensor_parallel_size", 2),
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
    contexts = [chain_context(config(), request) for request in requests]
    for one, mine in zip(kinds, contexts, strict=True):
        assert mine is not None
        proof = Chain(mine).proof(PROMPT, len(PROMPT))
        for other, theirs in zip(kinds, contexts, strict=True):
            assert theirs is not None
            # What lies before an image is the same with any.
            before = BLOCK if {*one, *other} <= {"mm_features"} else 0
            wanted = len(PROMPT) if one is other else before
            assert Chain(theirs).proven(proof, PROMPT) == wanted, (one, other)
