"""Long lists in parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """``items`` in order, at most ``size`` at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
