"""vLLM's own configuration, of a model small enough for any machine."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

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
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)

BLOCK = 16
WINDOW = 48
HAS_GENERATION = tuple(int(part) for part in vllm.__version__.split(".")[:2]) >= (0, 33)


@cache
def config() -> VllmConfig:
    """Of a small model, with our connector in both roles."""
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
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(shape))
        made = VllmConfig(
            model_config=ModelConfig(
                model=folder, skip_tokenizer_init=True, dtype="float32", max_model_len=1024
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
                # vLLM's own threshold is its default of 64 tokens.
                kv_connector_extra_config={"bidirectional_kv_xfer": True},
            ),
        )
    # Without its compiled half vLLM finds no platform, and so no hybrid manager.
    made.scheduler_config.disable_hybrid_kv_cache_manager = False
    return made


def kv_cache_config(*, sliding: bool) -> KVCacheConfig:
    shape = {"block_size": BLOCK, "num_kv_heads": 2, "head_size": 16, "dtype": torch.float32}
    groups = [KVCacheGroupSpec(["layers.0"], FullAttentionSpec(**shape))]
    if sliding:
        window = SlidingWindowSpec(**shape, sliding_window=WINDOW)
        groups.append(KVCacheGroupSpec(["layers.1"], window))
    return KVCacheConfig(num_blocks=100, kv_cache_tensors=[], kv_cache_groups=groups)
