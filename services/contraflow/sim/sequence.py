"""One request inside the engine: its tokens, its blocks, and what these hold."""

from __future__ import annotations

import asyncio
from enum import Enum, auto

from contraflow.sim.api import SimOutput, SimRequest
from contraflow.sim.model import attend
from contraflow.sim.pool import Block, chain_key


class Status(Enum):
    """Where a sequence is."""

    WAITING = auto()
    PULLING = auto()
    RUNNING = auto()
    FINISHED = auto()


class Sequence:
    """Satisfies ``contraflow_connector.decisions.Request``."""

    def __init__(self, request: SimRequest, block_size: int, root: bytes) -> None:
        self.request = request
        self.request_id = request.request_id
        self.prompt_token_ids = request.prompt_token_ids
        # Hooks write into it, as vLLM's do.
        self.kv_transfer_params = dict(request.kv_transfer_params or {}) or None
        self.all_token_ids = list(request.prompt_token_ids)
        self.output: list[int] = []
        self.outputs: asyncio.Queue[SimOutput | Exception] = asyncio.Queue()
        self.status = Status.WAITING
        self.aborted = False
        self.blocks: list[Block] = []
        self.computed = 0
        """Leading tokens with KV."""
        self.local_tokens = 0
        self.external_tokens = 0
        self.admitted = False
        self.stored = 0
        """Leading blocks that were given to the prefix cache."""
        self._block_size = block_size
        self._states = [root]
        self._keys: list[bytes] = []

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_token_ids)

    def keys(self, blocks: int) -> list[bytes]:
        """Prefix-cache keys of the leading whole blocks."""
        size = self._block_size
        while len(self._keys) < blocks:
            start = len(self._keys) * size
            parent = self._keys[-1] if self._keys else None
            tokens = self.all_token_ids[start : start + size]
            self._keys.append(chain_key(parent, tokens, self.request.cache_salt))
        return self._keys[:blocks]

    def compute(self) -> bytes:
        """Write the KV of all tokens that have none; returns the state after the last."""
        size, tokens = self._block_size, self.all_token_ids
        while self.computed < len(tokens):
            index, slot = divmod(self.computed, size)
            end = min(len(tokens), (index + 1) * size)
            content = self.blocks[index].content
            if slot == 0:
                content.seed = self._state(index)
            content.write(slot, tokens[self.computed : end])
            self.computed = end
        blocks, rest = divmod(len(tokens), size)
        state = self._state(blocks)
        return attend(state, self.blocks[blocks].content, rest) if rest else state

    def append(self, token: int) -> None:
        """A token was sampled; it has no KV yet."""
        self.output.append(token)
        self.all_token_ids.append(token)

    def drop_blocks(self) -> list[Block]:
        """Forget all KV; the blocks are the caller's to release."""
        blocks, self.blocks = self.blocks, []
        self.computed = self.stored = 0
        del self._states[1:]
        return blocks

    def _state(self, blocks: int) -> bytes:
        # Whole blocks do not change any more while the sequence holds them.
        while len(self._states) <= blocks:
            content = self.blocks[len(self._states) - 1].content
            self._states.append(attend(self._states[-1], content, self._block_size))
        return self._states[blocks]
