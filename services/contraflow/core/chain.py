"""The content chain: digests that prove which tokens a run of KV blocks belongs to.

Specified, with golden vectors, at ``TokenProof`` in ``contraflow/v1/handle.proto``.
Only the standard library is used, and nothing depends on an engine's hash seed.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

DIGEST_BYTES = 16
"""Length of a chain value."""
WIRE_BYTES = 8
"""Leading bytes of a chain value that travel for each whole block."""


@dataclass(frozen=True, slots=True)
class Item:
    """A multimodal item: ``length`` prompt tokens from ``offset`` on stand for it."""

    identifier: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Context:
    """What the root binds beside the tokens."""

    model: str
    block_size: int
    lora_name: str = ""
    cache_salt: str = ""
    items: tuple[Item, ...] = ()

    def root(self) -> bytes:
        """16 bytes, equal only for equal model, block size, LoRA name and cache salt."""
        parts = (
            b"contraflow.chain.v1",
            _field(self.model),
            struct.pack("<I", self.block_size),
            _field(self.lora_name),
            _field(self.cache_salt),
        )
        return _digest(b"".join(parts))

    def extras(self, start: int, end: int) -> bytes:
        """Bytes that bind the items overlapping tokens [start, end)."""
        if not self.items:
            return b""
        return b"".join(
            _field(item.identifier) + struct.pack("<i", item.offset - start)
            for item in sorted(self.items, key=lambda item: item.offset)
            if item.offset < end and item.offset + item.length > start
        )


@dataclass(frozen=True, slots=True)
class Proof:
    """Proof of ``num_tokens`` tokens: 8 bytes for each whole block, and the 16-byte tip."""

    block_size: int
    num_tokens: int
    digests: bytes
    tip: bytes
    trimmable: bool = True

    def is_well_formed(self) -> bool:
        """True if the lengths fit together; a proof that is not proves nothing."""
        return (
            self.block_size > 0
            and self.num_tokens > 0
            and len(self.digests) == self.num_tokens // self.block_size * WIRE_BYTES
            and len(self.tip) == DIGEST_BYTES
        )


@dataclass(slots=True)
class Chain:
    """The chain over one growing sequence of tokens. Each whole block is hashed once."""

    context: Context
    _values: list[bytes] = field(default_factory=list)

    def value(self, blocks: int) -> bytes:
        """chain[blocks - 1], or the root for 0. The blocks must have been extended over."""
        return self._values[blocks - 1] if blocks else self.context.root()

    def extend(self, tokens: Sequence[int], length: int | None = None) -> None:
        """Hash the whole blocks of ``tokens[:length]`` that are not hashed yet.

        ``tokens`` must begin with the tokens given in earlier calls.
        """
        size = self.context.block_size
        done = len(self._values)
        total = (len(tokens) if length is None else length) // size
        if total <= done:
            return
        packed = _pack(tokens[done * size : total * size])
        value = self.value(done)
        step = size * 4
        with_items = bool(self.context.items)
        for block in range(total - done):
            data = value + packed[block * step : (block + 1) * step]
            if with_items:
                start = (done + block) * size
                data += self.context.extras(start, start + size)
            value = _digest(data)
            self._values.append(value)

    def tip(self, tokens: Sequence[int], length: int) -> bytes:
        """Digest of ``tokens[:length]``, its partial last block included."""
        self.extend(tokens, length)
        blocks, rest = divmod(length, self.context.block_size)
        value = self.value(blocks)
        if not rest:
            return value
        start = length - rest
        extras = self.context.extras(start, length)
        return _digest(value + _pack(tokens[start:length]) + extras)

    def proof(self, tokens: Sequence[int], length: int, *, trimmable: bool = True) -> Proof:
        """Proof of ``tokens[:length]``."""
        tip = self.tip(tokens, length)
        whole = self._values[: length // self.context.block_size]
        digests = b"".join(value[:WIRE_BYTES] for value in whole)
        return Proof(self.context.block_size, length, digests, tip, trimmable)

    def proven(self, proof: Proof, tokens: Sequence[int]) -> int:
        """How many leading tokens of ``proof`` are these very ``tokens``.

        Whole blocks, plus the proof's partial last block if all before it matches. 0 if
        the proof is malformed or of another block size; all or 0 if it is not trimmable.
        """
        size = self.context.block_size
        if not proof.is_well_formed() or proof.block_size != size:
            return 0
        offered = proof.num_tokens // size
        self.extend(tokens, min(len(tokens), offered * size))
        matched = self._matching_blocks(proof, min(offered, len(tokens) // size))
        if (
            matched == offered
            and len(tokens) >= proof.num_tokens
            and self.tip(tokens, proof.num_tokens) == proof.tip
        ):
            return proof.num_tokens
        return matched * size if proof.trimmable else 0

    def _matching_blocks(self, proof: Proof, limit: int) -> int:
        # A value depends on all before it, so that equality is monotone: bisect.
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            at = (middle - 1) * WIRE_BYTES
            if self._values[middle - 1][:WIRE_BYTES] == proof.digests[at : at + WIRE_BYTES]:
                low = middle
            else:
                high = middle - 1
        return low


def _field(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:DIGEST_BYTES]


def _pack(tokens: Sequence[int]) -> bytes:
    packed = array("I", tokens)
    if packed.itemsize != 4:  # pragma: no cover - no such platform is supported
        return struct.pack(f"<{len(tokens)}I", *tokens)
    if sys.byteorder == "big":  # pragma: no cover
        packed.byteswap()
    return packed.tobytes()
