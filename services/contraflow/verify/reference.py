"""What an engine without any connector would generate. The KV of nobody else is involved."""

from __future__ import annotations

from functools import lru_cache

from contraflow.sim.api import SimRequest
from contraflow.sim.model import attend, root, sample
from contraflow.sim.pool import Content
from contraflow.verify.shape import BLOCK, MODEL


def generate(
    prompt: list[int], tokens: int, model: str = MODEL, block_size: int = BLOCK
) -> list[int]:
    """The first ``tokens`` tokens behind ``prompt``, greedily and without an end."""
    request = SimRequest("reference", prompt, max_tokens=tokens, ignore_eos=True)
    known, before, output = list(prompt), root(model), list[int]()
    start = 0
    for _ in range(tokens):
        while len(known) - start >= block_size:
            before = _after(before, tuple(known[start : start + block_size]))
            start += block_size
        state = _after(before, tuple(known[start:])) if start < len(known) else before
        token = sample(state, request, output)
        assert token is not None
        known.append(token)
        output.append(token)
    return output


@lru_cache(maxsize=1 << 14)
def _after(state: bytes, tokens: tuple[int, ...]) -> bytes:
    # The prompts of a conversation begin alike.
    return attend(state, Content(state, list(tokens)), len(tokens))
