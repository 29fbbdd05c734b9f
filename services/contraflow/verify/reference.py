"""What an engine without any connector would generate. The KV of nobody else is involved."""

from __future__ import annotations

from contraflow.sim.api import SimRequest
from contraflow.sim.model import root, sample
from contraflow.sim.pool import Block
from contraflow.sim.sequence import Sequence
from contraflow.verify.shape import BLOCK, MODEL


def generate(
    prompt: list[int], tokens: int, model: str = MODEL, block_size: int = BLOCK
) -> list[int]:
    """The first ``tokens`` tokens behind ``prompt``, greedily and without an end."""
    request = SimRequest("reference", prompt, max_tokens=tokens, ignore_eos=True)
    sequence = Sequence(request, block_size, root(model))
    blocks = (len(prompt) + tokens) // block_size + 1
    sequence.blocks = [Block(number) for number in range(blocks)]
    for _ in range(tokens):
        token = sample(sequence.compute(), request, sequence.output)
        assert token is not None
        sequence.append(token)
    return sequence.output
