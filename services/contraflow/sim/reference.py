"""The reference's published end points, from what the hardware and the models are made of.

One prefill and one decode node (p5en: eight H200, EFA), tensor parallel over the eight. OFF is
one-way with P's prefix cache off: P computes the whole prompt each turn. ON is bidirectional: P
pulls the whole blocks of what came before from D and computes the rest. Either way D then pulls
the new tokens from P, for its own prefix cache has the others, and makes the first token. Seconds,
bytes and FLOPs.

Every term is linear in five free parameters (``PARAMETERS``), fitted by relative least squares on
the six end points of the short lengths; the long ones are computed with them and were not looked
at for any constant. They show what is missing: from the short to the long prompts the transfer
metric grows by 100 ms (Qwen3-32B) and 81 ms (GLM-5-FP8), P's published prefill with a pull by 286
and 225 ms, where it computes the same few tokens. A pull costs more than its transfer.
docs/reference.md has the terms with their sources, and what else was tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from enum import StrEnum

from contraflow.core.least_squares import solve

RANKS = 8
BF16_PEAK = RANKS * 989e12
FP8_PEAK = RANKS * 1979e12
HBM_PEAK = RANKS * 4.8e12

# The rate of the two adapters of 200 Gbit/s that serve a rank: the short lengths can not tell it.
RANK_BANDWIDTH = 2 * 25e9
# Of templating and tokenizing, which P and D both do: 15 ms for 9,000 tokens of a Qwen prompt,
# as vLLM's guide to disaggregated serving has it.
HOST_SECONDS_PER_TOKEN = 15e-3 / 9_000
# vLLM's chunk on this hardware is 8,192 tokens.
CHUNK_TOKENS = 8192

# Lengths that are named are those of the prefix of each conversation. By the published scripts,
# vLLM's multi-turn benchmark puts 500 tokens before it that all conversations share, and sends
# five prompts in ten turns, of 150 new tokens each, with replies of 300.
COMMON_TOKENS = 500
NEW_TOKENS = 150
REPLY_TOKENS = 300

_CLIENTS = 2
_CONVERSATIONS_PER_CLIENT = 5
PROMPTS = 5
_WARM_UP = 0.2


def measured_prompts() -> Counter[int]:
    """How many of the measured prompts follow so many earlier ones of their conversation.

    Each of the benchmark's clients goes round its conversations and stops once the first of them
    is through, for then there is no other to begin. What starts in the first fifth is warm-up.
    Some first prompts, for which there is nothing to pull, remain.
    """
    rounds = [earlier for earlier in range(PROMPTS - 1) for _ in range(_CONVERSATIONS_PER_CLIENT)]
    by_start = sorted((*rounds, PROMPTS - 1) * _CLIENTS)
    return Counter(by_start[int(_WARM_UP * len(by_start)) :])


class Quantity(StrEnum):
    """What was published."""

    OFF = "TTFT OFF"
    ON = "TTFT ON"
    TRANSFER = "transfer"


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model as eight ranks serve it.

    ``token_weight_bytes`` are read for a single token, ``weight_bytes`` for hundreds, which need
    all experts. ``pair_flops`` are of a token and one token before it, ``attention_flops`` of a
    token whatever stands before it, both of all layers and ranks. ``rank_kv_bytes`` is a token's
    KV on one rank, ``block_descriptors`` the pieces that a rank reads for a block.
    """

    name: str
    active_parameters: float
    weight_bytes: float
    token_weight_bytes: float
    linear_peak: float
    pair_flops: float
    pair_peak: float
    attention_flops: float
    rank_kv_bytes: int
    block_tokens: int
    block_descriptors: int


# 64 layers, 64 heads, eight KV heads of 128, so one for each rank; keys and values are two pieces.
QWEN3_32B = Architecture(
    name="Qwen3-32B",
    active_parameters=31.2e9,
    weight_bytes=65.6e9,
    token_weight_bytes=65.6e9,
    linear_peak=BF16_PEAK,
    pair_flops=4 * 64 * 64 * 128,
    pair_peak=BF16_PEAK,
    attention_flops=0,
    rank_kv_bytes=64 * 2 * 128 * 2,
    block_tokens=16,
    block_descriptors=64 * 2,
)

# Published: 744 billion parameters of which 40 are active, 78 layers, 64 heads, latent KV of
# 512 + 64, sparse attention to 2,048 tokens that an indexer of 32 heads of 128 picks. Assumed: the
# latent KV in bf16 and the indexer's keys in FP8 with a scale (132 bytes) lie whole on every rank,
# in blocks of 64; a rank's eight heads are padded to the 64 of the sparse kernel; every rank runs
# the whole indexer.
GLM_5_FP8 = Architecture(
    name="GLM-5-FP8",
    active_parameters=40e9,
    weight_bytes=744e9,
    token_weight_bytes=40e9,
    linear_peak=FP8_PEAK,
    pair_flops=RANKS * 78 * 32 * 2 * 128,
    pair_peak=FP8_PEAK,
    attention_flops=RANKS * 78 * 64 * 2 * (576 + 512) * 2048,
    rank_kv_bytes=78 * (576 * 2 + 132),
    block_tokens=64,
    block_descriptors=78 * 2,
)


@dataclass(frozen=True, slots=True)
class EndPoint:
    """One published number. ``prefix`` tokens are what its length is named by."""

    model: Architecture
    quantity: Quantity
    prefix: int
    seconds: float

    @property
    def tokens(self) -> int:
        """Of the mean prompt that was measured."""
        counts = measured_prompts()
        total = sum(self.prompt(earlier) * count for earlier, count in counts.items())
        return round(total / counts.total())

    def prompt(self, earlier: int) -> int:
        """Tokens of one that follows so many earlier ones of its conversation."""
        grown = earlier * (NEW_TOKENS + REPLY_TOKENS)
        return COMMON_TOKENS + self.prefix + grown + NEW_TOKENS


SHORT = (
    EndPoint(QWEN3_32B, Quantity.OFF, 2_000, 0.158),
    EndPoint(QWEN3_32B, Quantity.ON, 2_000, 0.122),
    EndPoint(QWEN3_32B, Quantity.TRANSFER, 2_000, 0.030),
    EndPoint(GLM_5_FP8, Quantity.OFF, 2_000, 0.500),
    EndPoint(GLM_5_FP8, Quantity.ON, 2_000, 0.358),
    EndPoint(GLM_5_FP8, Quantity.TRANSFER, 2_000, 0.029),
)
LONG = (
    EndPoint(QWEN3_32B, Quantity.OFF, 24_000, 0.778),
    EndPoint(QWEN3_32B, Quantity.ON, 24_000, 0.460),
    EndPoint(QWEN3_32B, Quantity.TRANSFER, 24_000, 0.130),
    EndPoint(GLM_5_FP8, Quantity.OFF, 20_000, 2.334),
    EndPoint(GLM_5_FP8, Quantity.ON, 20_000, 0.702),
    EndPoint(GLM_5_FP8, Quantity.TRANSFER, 20_000, 0.110),
)


@dataclass(frozen=True, slots=True)
class Hardware:
    """The free parameters, the same for both models. Seconds.

    ``tensor_slowdown``: how many times longer FLOPs take than at the tensor cores' peak.
    ``weight_read_slowdown``: the same of reading weights at the memory's peak, launches and
    collectives included. ``request_seconds``: client, router and both servers, whatever the length.
    """

    tensor_slowdown: float
    weight_read_slowdown: float
    pull_setup_seconds: float
    descriptor_seconds: float
    request_seconds: float


PARAMETERS = tuple(Hardware.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class Terms:
    """A time: ``known`` seconds, and by how much each free parameter counts."""

    known: float = 0.0
    ideal_compute: float = 0.0
    weight_reads: float = 0.0
    pulls: float = 0.0
    descriptors: float = 0.0
    requests: float = 0.0

    def __add__(self, other: Terms) -> Terms:
        mine, others = (self.known, *self.weights), (other.known, *other.weights)
        return Terms(*(a + b for a, b in zip(mine, others, strict=True)))

    def __mul__(self, times: float) -> Terms:
        return Terms(self.known * times, *(weight * times for weight in self.weights))

    @property
    def weights(self) -> tuple[float, ...]:
        """In the order of ``PARAMETERS``."""
        return self.ideal_compute, self.weight_reads, self.pulls, self.descriptors, self.requests

    def seconds(self, hardware: Hardware) -> float:
        """What it comes to."""
        values = astuple(hardware)
        free: float = sum(w * v for w, v in zip(self.weights, values, strict=True))
        return self.known + free


def terms(point: EndPoint) -> Terms:
    """The model of one end point: the mean of the prompts that were measured."""
    counts = measured_prompts()
    if point.quantity is Quantity.TRANSFER:
        del counts[0]
    total = Terms()
    for earlier, count in counts.items():
        total += _prompt(point, earlier) * (count / counts.total())
    return total


def _prompt(point: EndPoint, earlier: int) -> Terms:
    model, tokens = point.model, point.prompt(earlier)
    before = tokens - NEW_TOKENS if earlier else 0
    held = before // model.block_tokens * model.block_tokens
    if point.quantity is Quantity.TRANSFER:
        return pull(model, held)
    rest = answer(model, tokens, new=tokens - held)
    if point.quantity is Quantity.OFF or not held:
        return rest + compute(model, tokens, context=0)
    return rest + pull(model, held) + compute(model, tokens - held, context=held)


def answer(model: Architecture, tokens: int, new: int) -> Terms:
    """All of a turn but P's work: servers, D's pull of what it lacks, its first token."""
    return (
        Terms(known=2 * HOST_SECONDS_PER_TOKEN * tokens, requests=1)
        + pull(model, new)
        + Terms(weight_reads=model.token_weight_bytes / HBM_PEAK)
    )


def fit(points: Sequence[EndPoint] = SHORT) -> Hardware:
    """The parameters for which the points' relative errors are least, in squares."""
    found = [(terms(point), point.seconds) for point in points]
    rows = [[weight / seconds for weight in one.weights] for one, seconds in found]
    return Hardware(*solve(rows, [1 - one.known / seconds for one, seconds in found]))


def compute(model: Architecture, tokens: int, context: int) -> Terms:
    """P's computing of ``tokens`` that follow ``context`` ones."""
    pairs = tokens * (context + tokens / 2)
    ideal = (
        2 * model.active_parameters * tokens / model.linear_peak
        + model.pair_flops * pairs / model.pair_peak
        + model.attention_flops * tokens / BF16_PEAK
    )
    chunks = -(-tokens // CHUNK_TOKENS)
    return Terms(ideal_compute=ideal, weight_reads=chunks * model.weight_bytes / HBM_PEAK)


def pull(model: Architecture, tokens: int) -> Terms:
    """Reading the KV of ``tokens`` from the other node, each rank its own."""
    blocks = -(-tokens // model.block_tokens)
    return Terms(
        known=tokens * model.rank_kv_bytes / RANK_BANDWIDTH,
        pulls=1,
        descriptors=blocks * model.block_descriptors,
    )
