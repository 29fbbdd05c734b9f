"""The two models of the reference: how they are served, and what was published of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ONE_WAY, BIDIRECTIONAL = "one-way", "bidirectional"


@dataclass(frozen=True, slots=True)
class Model:
    """``arguments`` of ``vllm serve`` are those of both roles. ``published``: by leg, mean TTFT
    in milliseconds by length of the prefix in tokens."""

    repository: str
    arguments: str
    published: Mapping[str, Mapping[int, float]]


MODELS: Mapping[str, Model] = {
    "qwen3-32b": Model(
        "Qwen/Qwen3-32B",
        "--served-model-name qwen3-32b --tensor-parallel-size 8 --max-model-len 40960",
        {ONE_WAY: {2_000: 158, 24_000: 778}, BIDIRECTIONAL: {2_000: 122, 24_000: 460}},
    ),
    "glm-5-fp8": Model(
        "zai-org/GLM-5-FP8",
        "--served-model-name glm-5-fp8 --tensor-parallel-size 8 --max-model-len 40960",
        {ONE_WAY: {2_000: 500, 20_000: 2_334}, BIDIRECTIONAL: {2_000: 358, 20_000: 702}},
    ),
}
