"""The two models of the reference: how they are served, and what was published of them.

The reference is the vLLM blog's "Bi-Directional KV Transfer for Multi-Turn Agentic Workloads in
vLLM", in the version of 2026-10-12, with the scripts that came with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Its ten turns are messages, as vLLM's benchmark counts them: five questions with their answers.
TURNS = 5
ONE_WAY, BIDIRECTIONAL = "one-way", "bidirectional"
# Both models, both roles.
_ARGUMENTS = "--dtype bfloat16 --tensor-parallel-size 8 --max-model-len 32768 --max-num-seqs 8"


@dataclass(frozen=True, slots=True)
class Model:
    """``arguments`` of ``vllm serve`` are those of both roles.

    Published, in milliseconds, by tokens of the prefix, which the turns come on top of:
    ``ttft``, the mean by leg, and ``transfer``, the mean time of prefill's reads.
    """

    repository: str
    arguments: str
    ttft: Mapping[str, Mapping[int, float]]
    transfer: Mapping[int, float]


MODELS: Mapping[str, Model] = {
    "qwen3-32b": Model(
        "Qwen/Qwen3-32B",
        f"--served-model-name qwen3-32b {_ARGUMENTS}",
        {ONE_WAY: {2_000: 158, 24_000: 778}, BIDIRECTIONAL: {2_000: 122, 24_000: 460}},
        {2_000: 30, 24_000: 130},
    ),
    "glm-5-fp8": Model(
        "zai-org/GLM-5-FP8",
        f"--served-model-name glm-5-fp8 {_ARGUMENTS}",
        {ONE_WAY: {2_000: 500, 20_000: 2_334}, BIDIRECTIONAL: {2_000: 358, 20_000: 702}},
        {2_000: 29, 20_000: 110},
    ),
}
