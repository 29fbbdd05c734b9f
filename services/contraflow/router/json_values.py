"""How many values JSON has, told before any is built: decoding holds up all other turns."""

from __future__ import annotations

from collections.abc import Sequence

_MAX_SIFTED = 8 * 1024 * 1024
"""Bytes in which texts are told from structure: more than the longest conversations have of text.
Beyond, each comma in a text counts as one of the structure."""


def has_more_values(texts: Sequence[bytes], limit: int) -> bool:
    """True if these JSON texts have more than ``limit`` values together: members and items at
    every depth, and each empty object or array once more.

    Of what is no JSON at least the part before the first mistake counts, for a decoder builds it.
    """
    size = sum(map(len, texts))
    if size <= limit or sum(map(_marks, texts)) <= limit:  # those in strings included
        return False
    if size > _MAX_SIFTED:
        return True
    return sum(_marks(_without_strings(text, limit)) for text in texts) > limit


def _marks(text: bytes) -> int:
    # Each value but the outermost follows a comma, or is the first behind a bracket.
    return len(text) - len(text.translate(None, b",[{"))


def _without_strings(text: bytes, limit: int) -> bytes:
    unescaped = text.replace(rb"\\", b"").replace(rb"\"", b"")
    # Behind so many quotes there are more than `limit` marks, even if all keys and values are text.
    return b"".join(unescaped.split(b'"', 4 * limit + 4)[::2])
