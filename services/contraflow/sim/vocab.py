"""Token ids: a byte is its own token, a few specials follow."""

from __future__ import annotations

BYTES = 256
"""Ids below this are bytes."""

EOS = 256
BOS = 257

VOCAB_SIZE = 264
"""Ids from 258 on stand for nothing yet."""
