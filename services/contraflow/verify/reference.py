"""What an engine without any connector would generate. The KV of nobody else is involved."""

from __future__ import annotations

from contraflow.sim.api import SimRequest
from contraflow.sim.model import root, sample
from contraflow.sim.pool import Block
from contraflow.sim.sequence import Sequence
from contraflow.verify.shape import BLOCK, MODEL

_ROOT = root(MODEL)


def generate(prompt: list[int], tokens: int) -> list[int]:
    """The first ``tokens`` tokens behind ``prompt``, greedily and without an end."""
    request = SimRequest("reference", prompt, max_tokens=tokens, ignore_eos=True)
    sequence = Sequence(request, BLOCK, _ROOT)
    sequence.blocks = [Block(number) for number in range((len(prompt) + tokens) // BLOCK + 1)]
    for _ in range(tokens):
        token = sample(sequence.compute(), request, sequence.output)
        assert token is not None
        sequence.append(token)
    return sequence.output
