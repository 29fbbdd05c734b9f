"""What happens in an engine's prefix cache, as vLLM's KV events tell it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Whole blocks can be found now. Hashes are 16 bytes; the parent is None at the root."""

    block_hashes: list[bytes]
    parent_block_hash: bytes | None
    token_ids: list[int]
    block_size: int
    cache_salt: str = ""
    session_id: str = ""


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """Blocks can no longer be found."""

    block_hashes: list[bytes]


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """Nothing can be found any more."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared
OnKvEvent = Callable[[KvEvent], None]
