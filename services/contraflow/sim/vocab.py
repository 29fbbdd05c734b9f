"""Token ids: a byte is its own token, a few specials follow."""

from __future__ import annotations

BYTES = 256
"""Ids below this are bytes."""

EOS = 256
BOS = 257
SYSTEM = 258
USER = 259
ASSISTANT = 260
TOOL = 261
END_OF_MESSAGE = 262

VOCAB_SIZE = 264
