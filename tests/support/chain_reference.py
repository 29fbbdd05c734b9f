"""The content chain once more, written from the comment of ``TokenProof`` alone, and slowly.

``python -m tests.support.chain_reference`` writes the golden vectors beside the proto anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from contraflow.core.chain import Context, Item

VECTORS = Path(__file__).resolve().parents[2] / "proto/contraflow/v1/chain_vectors.json"


def uint32le(number: int) -> bytes:
    return number.to_bytes(4, "little")


def int32le(number: int) -> bytes:
    return number.to_bytes(4, "little", signed=True)


def text_field(text: str) -> bytes:
    return uint32le(len(text.encode("utf-8"))) + text.encode("utf-8")


def root(context: Context) -> bytes:
    data = b"contraflow.chain.v1" + text_field(context.model) + uint32le(context.block_size)
    return sha256(data + text_field(context.lora_name) + text_field(context.cache_salt)).digest()[
        :16
    ]


def extras(context: Context, positions: Sequence[int]) -> bytes:
    data = b""
    for item in sorted(context.items, key=lambda item: item.offset):
        if set(range(item.offset, item.offset + item.length)) & set(positions):
            data += text_field(item.identifier) + int32le(item.offset - positions[0])
    return data


def link(context: Context, previous: bytes, tokens: Sequence[int], positions: range) -> bytes:
    data = previous
    for position in positions:
        data += uint32le(tokens[position])
    return sha256(data + extras(context, positions)).digest()[:16]


def chain(context: Context, tokens: Sequence[int]) -> list[bytes]:
    """chain[0] to chain[n-1]."""
    values: list[bytes] = []
    size = context.block_size
    for block in range(len(tokens) // size):
        previous = values[-1] if values else root(context)
        values.append(link(context, previous, tokens, range(block * size, (block + 1) * size)))
    return values


def tip(context: Context, tokens: Sequence[int]) -> bytes:
    values = chain(context, tokens)
    last = values[-1] if values else root(context)
    rest = range(len(values) * context.block_size, len(tokens))
    return link(context, last, tokens, rest) if rest else last


def digests(context: Context, tokens: Sequence[int]) -> bytes:
    return b"".join(value[:8] for value in chain(context, tokens))


def vector(name: str, context: Context, tokens: Sequence[int]) -> dict[str, Any]:
    """One golden vector."""
    return {
        "name": name,
        "context": asdict(context),
        "tokens": list(tokens),
        "root": root(context).hex(),
        "digests": digests(context, tokens).hex(),
        "tip": tip(context, tokens).hex(),
    }


_MANY = [(17 * i * i + 3 * i + 1) % 151_936 for i in range(160)]
_WIDE = [2**32 - 1, 0, 2**31, 2**31 - 1, 255, 256, 65_535, 65_536, 2**24, 2**32 - 2] * 4
_ITEMS = (
    # Given out of order; the first in position begins before block 1 and ends within block 3.
    Item("image:9f2c", 70, 10),
    Item("image:03ab", 12, 40),
    Item("audio:ümlaut", 64, 6),
    Item("video:last", 90, 8),
)
CONTEXTS = {
    "no extras": Context("m/plain", 16),
    "LoRA": Context("m/plain", 16, lora_name="support-v2"),
    "cache salt": Context("m/plain", 16, cache_salt="0123456789abcdef"),
    "LoRA and cache salt": Context("m/plain", 16, "support-v2", "0123456789abcdef"),
    "the LoRA's name as salt": Context("m/plain", 16, cache_salt="support-v2"),
    "unicode": Context("模型/Ünïcode-🙂", 16, "läufer", "сіль"),
    "items spanning blocks": Context("m/vision", 16, items=_ITEMS),
    "one item for all": Context("m/vision", 32, "lora", "salt", (Item("whole", 0, 160),)),
    "blocks of 1": Context("m/plain", 1),
    "blocks of 1 with an item": Context("m/vision", 1, items=(Item("image", 1, 2),)),
    "blocks of 32": Context("m/plain", 32),
}


def vectors() -> Iterator[dict[str, Any]]:
    """All golden vectors."""
    for name, context in CONTEXTS.items():
        size = context.block_size
        blocks = 6 if context.items and size == 16 else 3
        for length in sorted({1, blocks * size - 1, blocks * size, blocks * size + 1}):
            yield vector(f"{name}, {length} tokens", context, _MANY[:length])
    for size in (1, 16, 32):
        yield vector(f"wide token ids, blocks of {size}", Context("m/wide", size), _WIDE)


def rendered() -> str:
    """The text of the file of golden vectors, one vector a line."""
    lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in vectors())
    return f"[\n{lines}\n]\n"


if __name__ == "__main__":
    VECTORS.write_text(rendered(), encoding="utf-8")
