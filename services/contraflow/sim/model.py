"""The model: the next token is a function of the KV in the blocks, not of the prompt."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

from contraflow.sim.api import SimRequest
from contraflow.sim.pool import Content
from contraflow.sim.vocab import EOS

_LETTERS = b"etaoinshrdlucmfwypvbgkjqxz"
_EOS_SHARE, _SPACE_SHARE, _LETTER_SHARE = 0.01, 0.17, 0.95


def root(model: str) -> bytes:
    """State before the first token."""
    return hashlib.blake2b(model.encode(), digest_size=16, person=b"sim root").digest()


def attend(state: bytes, content: Content, length: int) -> bytes:
    """State after the first ``length`` tokens of a block, as its KV tells them."""
    held = content.tokens
    if len(held) != length:
        held = held[:length] + [-1] * (length - len(held))
    data = state + content.seed.ljust(16) + array("q", held).tobytes()
    return hashlib.blake2b(data, digest_size=16).digest()


def sample(state: bytes, request: SimRequest, output: Sequence[int]) -> int | None:
    """The token after ``output``; None if the mask ends the answer.

    Greedy for temperature 0, else it also depends on the seed and, without one, on the
    request's id.
    """
    salt = b""
    if request.temperature > 0:
        seed = request.request_id if request.seed is None else request.seed
        salt = f"{seed}/{len(output)}".encode()
    draw = hashlib.blake2b(state + salt, digest_size=16, person=b"sim sample").digest()
    share = int.from_bytes(draw[:8]) / 2**64
    pick = int.from_bytes(draw[8:])
    may_end = len(output) >= request.min_tokens
    barred = frozenset() if may_end else request.stop_token_ids
    if request.mask is not None:
        allowed = sorted(request.mask(list(output)))
        if not may_end:
            allowed = [token for token in allowed if token not in {EOS, *barred}] or allowed
        return allowed[pick % len(allowed)] if allowed else None
    if share < _EOS_SHARE and may_end and not request.ignore_eos:
        return EOS
    if share < _EOS_SHARE + _SPACE_SHARE:
        token = ord(" ")
    elif share < _LETTER_SHARE:
        token = _LETTERS[pick % len(_LETTERS)]
    else:
        token = 32 + pick % 95
    if token in barred:
        others = [other for other in range(32, 127) if other not in barred]
        return others[pick % len(others)] if others else token
    return token
