"""The KV pool: blocks with what they hold, and the prefix cache over them."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from contraflow.sim.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, OnKvEvent


@dataclass(slots=True)
class Content:
    """The KV in one block: of these tokens, computed after what ``seed`` stands for."""

    seed: bytes = b""
    tokens: list[int] = field(default_factory=list)

    def write(self, slot: int, tokens: Sequence[int]) -> None:
        """KV of ``tokens`` from ``slot`` on; what nobody wrote before it is garbage."""
        gap = slot - len(self.tokens)
        self.tokens[slot:] = [*[-1] * gap, *tokens]


@dataclass(slots=True)
class Block:
    """``generation`` grows with each allocation; ``key`` is set while it can be found."""

    block_id: int
    refs: int = 0
    generation: int = 0
    content: Content = field(default_factory=Content)
    key: bytes | None = None


def chain_key(parent: bytes | None, tokens: Sequence[int], salt: str) -> bytes:
    """Key of a whole block: its tokens, everything before them, and the cache salt."""
    start = parent if parent is not None else b"root" + salt.encode()
    return hashlib.blake2b(start + array("q", tokens).tobytes(), digest_size=16).digest()


class Pool:
    """A fixed number of blocks; block 0 is never handed out. Free cached blocks are reused
    last, the least recently used first."""

    def __init__(self, num_blocks: int, block_size: int, on_event: OnKvEvent) -> None:
        self.block_size = block_size
        self.blocks = [Block(block_id) for block_id in range(num_blocks)]
        self._free = OrderedDict((block.block_id, block) for block in self.blocks[1:])
        self._cached: dict[bytes, Block] = {}
        self._on_event = on_event

    @property
    def capacity(self) -> int:
        """Blocks that requests can have."""
        return len(self.blocks) - 1

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds; cached ones count."""
        return len(self._free)

    def find(self, keys: Iterable[bytes]) -> list[Block]:
        """Cached blocks of the longest prefix of ``keys``."""
        found = []
        for key in keys:
            if (block := self._cached.get(key)) is None:
                break
            found.append(block)
        return found

    def allocate(self, count: int, cached: Sequence[Block] = ()) -> list[Block] | None:
        """Hold ``cached`` and ``count`` more blocks, which are returned; None, and nothing is
        held, if there are too few. What is in the new blocks is left there."""
        unheld = sum(block.refs == 0 for block in cached)
        if count + unheld > len(self._free):
            return None
        for block in cached:
            block.refs += 1
            self._free.pop(block.block_id, None)
        return [self._take() for _ in range(count)]

    def release(self, blocks: Sequence[Block]) -> None:
        """Let go of blocks in token order; the last are reused first."""
        for block in reversed(blocks):
            block.refs -= 1
            if block.refs == 0:
                self._free[block.block_id] = block

    def store(
        self,
        blocks: Sequence[Block],
        keys: Sequence[bytes],
        *,
        parent: bytes | None,
        tokens: Sequence[int],
        salt: str = "",
        session_id: str = "",
    ) -> None:
        """Let whole blocks be found: ``tokens`` are theirs, ``parent`` the key before them."""
        fresh = [i for i, key in enumerate(keys) if key not in self._cached]
        for i in fresh:
            blocks[i].key = keys[i]
            self._cached[keys[i]] = blocks[i]
        if fresh:
            start = fresh[0]
            self._on_event(
                BlockStored(
                    block_hashes=list(keys[start:]),
                    parent_block_hash=keys[start - 1] if start else parent,
                    token_ids=list(tokens[start * self.block_size :]),
                    block_size=self.block_size,
                    cache_salt=salt,
                    session_id=session_id,
                )
            )

    def clear(self) -> None:
        """Forget the prefix cache; blocks in use stay as they are."""
        for block in self._cached.values():
            block.key = None
        self._cached = {}
        self._on_event(AllBlocksCleared())

    def _take(self) -> Block:
        _, block = self._free.popitem(last=False)
        if block.key is not None:
            del self._cached[block.key]
            self._on_event(BlockRemoved([block.key]))
            block.key = None
        block.refs = 1
        block.generation += 1
        return block
