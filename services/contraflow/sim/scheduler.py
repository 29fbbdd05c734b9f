"""Which requests compute in a step, and what becomes of them after it."""

from __future__ import annotations

import logging
from collections import deque

from contraflow.core.transfer_params import Params
from contraflow.sim.api import SimCounters, SimOutput, SimRequest
from contraflow.sim.model import root, sample
from contraflow.sim.options import SimOptions
from contraflow.sim.pool import Block, Pool
from contraflow.sim.puller import Landing
from contraflow.sim.sequence import Sequence, Status
from contraflow.sim.transfer import Transfer
from contraflow.sim.vocab import EOS
from contraflow_connector.reads import blocks_for

log = logging.getLogger(__name__)


class Scheduler:
    """First come, first served; whole prompts at once; the last to come is preempted first.

    ``transfer`` is None for an engine without a connector.
    """

    def __init__(
        self, options: SimOptions, pool: Pool, transfer: Transfer | None, counters: SimCounters
    ) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.pulling: list[Sequence] = []
        self.held: dict[str, list[Block]] = {}
        """Blocks of finished requests, for readers."""
        self.landed: list[Landing] = []
        """Reads that have ended since the last step."""
        self._aborted: list[Sequence] = []
        self._options = options
        self._pool = pool
        self._transfer = transfer
        self._counters = counters
        self._root = root(options.model)
        self._most_tokens = min(options.max_model_len, pool.capacity * options.block_size)

    def check(self, request: SimRequest) -> None:
        """Raises ValueError for a request that can never be served."""
        if not request.prompt_token_ids:
            raise ValueError("the prompt is empty")
        if request.max_tokens < 1:
            raise ValueError("max_tokens must be at least 1")
        if len(request.prompt_token_ids) >= self._most_tokens:
            raise ValueError(
                f"the prompt has {len(request.prompt_token_ids)} tokens; at most "
                f"{self._most_tokens - 1} fit, since the answer needs one"
            )

    def add(self, request: SimRequest) -> Sequence:
        """Queue a request."""
        seq = Sequence(request, self._options.block_size, self._root)
        self.waiting.append(seq)
        if self._transfer is not None:
            self._transfer.arrived(seq)
        return seq

    def abort(self, seq: Sequence) -> None:
        """End it before the next step, if it has not ended."""
        if seq.status is not Status.FINISHED:
            seq.aborted = True
            self._aborted.append(seq)

    def live(self) -> list[Sequence]:
        """Everything that has not finished."""
        live = [*self.waiting, *self.pulling, *self.running]
        return [seq for seq in live if seq.status is not Status.FINISHED]

    @property
    def has_work(self) -> bool:
        """Whether anything runs, or is kept for a reader."""
        return bool(self.live() or self.held)

    def schedule(self) -> list[Sequence]:
        """The sequences to compute now; they have the blocks for it."""
        self._end_aborted()
        self._land()
        self._grow()
        self._admit()
        return list(self.running)

    def free_held(self) -> bool:
        """Free what readers are done with, or must yield; True if that was anything."""
        gone = self._transfer.step() if self._transfer is not None else []
        for request_id in gone:
            self._pool.release(self.held.pop(request_id))
        return bool(gone)

    def complete(self, batch: list[Sequence]) -> None:
        """The time for ``batch`` is over: write its KV and sample."""
        for seq in batch:
            if seq.aborted:
                continue  # ended when the next step begins
            state = seq.compute()
            self._store(seq)
            try:
                token = sample(state, seq.request, seq.output)
            except Exception as error:  # of the request's own mask
                seq.outputs.put_nowait(error)
                self.abort(seq)
                continue
            self._advance(seq, token)

    # Before a step.

    def _end_aborted(self) -> None:
        aborted, self._aborted = self._aborted, []
        for seq in aborted:
            if seq.status is not Status.FINISHED:
                self._finish(seq, "abort", [])

    def _land(self) -> None:
        landed, self.landed = self.landed, []
        for landing in landed:
            seq = landing.pull.seq
            self.pulling.remove(seq)
            if seq.status is Status.FINISHED:  # aborted while its blocks were being written
                self._pool.release(seq.drop_blocks())
                continue
            assert self._transfer is not None
            self._transfer.landed(
                seq,
                ok=landing.ok,
                moved=landing.moved,
                blocks=landing.blocks,
                seconds=landing.seconds,
            )
            if landing.ok:
                # One token is always computed: its logits are needed.
                last = len(seq.all_token_ids) - 1
                seq.computed = min(seq.local_tokens + seq.external_tokens, last)
            else:
                seq.external_tokens = 0
            self._run(seq)

    def _grow(self) -> None:
        for seq in list(self.running):
            while seq.status is Status.RUNNING and self._lacks_block(seq):
                if fresh := self._pool.allocate(1):
                    seq.blocks += fresh
                else:
                    self._preempt(self.running[-1])

    def _lacks_block(self, seq: Sequence) -> bool:
        return len(seq.blocks) < blocks_for(len(seq.all_token_ids), self._options.block_size)

    def _preempt(self, seq: Sequence) -> None:
        self.running.remove(seq)
        self._pool.release(seq.drop_blocks())
        seq.status = Status.WAITING
        self.waiting.appendleft(seq)
        self._counters.preemptions += 1

    def _admit(self) -> None:
        refused: list[Sequence] = []
        while self.waiting and len(self.running) + len(self.pulling) < self._options.max_num_seqs:
            seq = self.waiting.popleft()
            if not self._start(seq):
                refused.append(seq)
                if self._options.vllm_version == "0.32":
                    break  # later releases look at those behind it
        self.waiting.extendleft(reversed(refused))

    def _start(self, seq: Sequence) -> bool:
        size, tokens = self._options.block_size, len(seq.all_token_ids)
        reads = not seq.request.skip_prefix_cache
        cached = self._pool.find(seq.keys((tokens - 1) // size)) if reads else []
        local, external = len(cached) * size, 0
        if self._transfer is not None:
            matched = self._transfer.matched(seq, local)
            external = matched if reads else 0  # vLLM asks all the same, and then does not read
        fresh = self._pool.allocate(blocks_for(tokens, size) - len(cached), cached)
        if fresh is None:
            return False
        seq.blocks = [*cached, *fresh]
        seq.computed, seq.stored = local, len(cached)
        if not seq.admitted:
            seq.local_tokens, seq.external_tokens = local, external
        if external:
            seq.status = Status.PULLING
            self.pulling.append(seq)
        if self._transfer is not None:
            self._transfer.allocated(seq, external)
        if not external:
            self._run(seq)
        return True

    def _run(self, seq: Sequence) -> None:
        seq.status = Status.RUNNING
        self.running.append(seq)
        if seq.admitted:
            return
        seq.admitted = True
        pulled, found = seq.external_tokens, seq.local_tokens
        self._counters.prompt_tokens_local_cache_hit += found
        self._counters.prompt_tokens_external += pulled
        self._counters.prompt_tokens_computed += seq.num_prompt_tokens - found - pulled

    # After a step.

    def _store(self, seq: Sequence) -> None:
        size, whole, stored = self._options.block_size, 0, seq.stored
        whole = seq.computed // size
        if whole > stored:
            keys = seq.keys(whole)
            self._pool.store(
                seq.blocks[stored:whole],
                keys[stored:],
                parent=keys[stored - 1] if stored else None,
                tokens=seq.all_token_ids[stored * size : whole * size],
                salt=seq.request.cache_salt,
                session_id=seq.request.session_id,
            )
            seq.stored = whole

    def _advance(self, seq: Sequence, token: int | None) -> None:
        if token is None:
            self._finish(seq, "stop", [])
            return
        seq.append(token)
        self._counters.generation_tokens += 1
        request, made = seq.request, len(seq.output)
        ends = token in request.stop_token_ids or (token == EOS and not request.ignore_eos)
        if ends and made >= request.min_tokens:
            self._finish(seq, "stop", [token])
        elif made >= request.max_tokens or len(seq.all_token_ids) >= self._most_tokens:
            self._finish(seq, "length", [token])
        else:
            seq.outputs.put_nowait(SimOutput([token], num_cached_tokens=_cached(seq)))

    def _finish(self, seq: Sequence, reason: str, token_ids: list[int]) -> None:
        delay, params = self._hand_in(seq, reason)
        if seq.status is Status.WAITING:
            self.waiting.remove(seq)
        elif seq.status is Status.RUNNING:
            self.running.remove(seq)
            blocks = seq.drop_blocks()
            if delay:
                self.held[seq.request_id] = blocks
            else:
                self._pool.release(blocks)
        # Blocks that are being pulled into go when the read has ended.
        seq.status = Status.FINISHED
        self._counters.finished[reason] = self._counters.finished.get(reason, 0) + 1
        seq.outputs.put_nowait(SimOutput(token_ids, reason, params, _cached(seq)))

    def _hand_in(self, seq: Sequence, reason: str) -> tuple[bool, Params | None]:
        return self._transfer.finished(seq, reason) if self._transfer is not None else (False, None)


def _cached(seq: Sequence) -> int:
    return seq.local_tokens + seq.external_tokens
