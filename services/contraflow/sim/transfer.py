"""The connector of a sim engine: vLLM's pull connector as it is, with our decisions in it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contraflow.core.chain import Context
from contraflow.core.handle import State
from contraflow.core.transfer_params import Params, has_remote_blocks, remote_blocks
from contraflow.sim.api import SimCounters
from contraflow.sim.fabric import FabricError
from contraflow.sim.options import SimOptions
from contraflow.sim.pool import Block, Pool
from contraflow.sim.sequence import Sequence as Seq
from contraflow_connector.decisions import AgentLink, Decisions
from contraflow_connector.holds import Hold, Lease
from contraflow_connector.reads import blocks_for
from contraflow_connector.retained import Retained

log = logging.getLogger(__name__)

_RETAINING = frozenset({"length", "stop"})

REGISTRATION_GENERATION = 1
"""A sim engine registers its memory once."""


@dataclass(frozen=True, slots=True)
class Pull:
    """A read to be started. Without local blocks its owner is only notified."""

    seq: Seq
    local_blocks: Sequence[Block]
    params: Params
    hold: Hold | None = None


class Transfer(Decisions):
    """Both halves of a connector. Names with an underscore that vLLM has are vLLM's.

    ``_reqs_in_batch``: requests whose blocks a reader may end; ``_reqs_need_send``: finished
    ones and until when their blocks are held.
    """

    def __init__(
        self,
        options: SimOptions,
        engine_id: str,
        pool: Pool,
        retained: Retained,
        counters: SimCounters,
    ) -> None:
        self.engine_id = engine_id
        self.block_size = options.block_size
        self.decoder_kv_blocks_ttl = options.retention_ttl
        self._reqs_in_batch = set()
        self._reqs_need_send = {}
        self._prepare(
            retained,
            bidirectional=options.bidirectional,
            trimmable=options.trimmable,
            num_blocks=options.num_blocks,
        )
        self.side_channel = ("", 0)
        self.heartbeats: dict[str, Params] = {}
        """Waiting request -> whose blocks' lease it keeps alive."""
        self.start_pull: Callable[[Pull], None] = lambda pull: None
        self._options = options
        self._pool = pool
        self._counters = counters
        self._notified: list[str] = []

    def use_link(self, link: AgentLink) -> None:
        """Speak to an agent through it."""
        self._link = link

    def deadline(self) -> float:
        """When blocks expire next; infinite if none are held."""
        return min(self._reqs_need_send.values(), default=float("inf"))

    # The reader.

    def arrived(self, seq: Seq) -> None:
        """A request has come; while it waits for its blocks, their lease is renewed."""
        params = seq.kv_transfer_params
        if params and params.get("do_remote_prefill") and has_remote_blocks(params):
            self.heartbeats[seq.request_id] = dict(params)

    def matched(self, seq: Seq, local_tokens: int) -> int:
        """Tokens beyond ``local_tokens`` to pull. Asked anew as often as the request waits."""
        self._note_waiting(seq)
        params = seq.kv_transfer_params
        if not params or not self._admit(seq, local_tokens):
            return 0
        prompt = seq.num_prompt_tokens
        if params.get("do_remote_prefill"):
            return max(0, prompt - local_tokens)
        if params.get("do_remote_decode") and params.get("remote_block_ids"):
            offered: int = params["remote_num_tokens"]
            return max(0, min(offered, prompt) - local_tokens)
        return 0

    def allocated(self, seq: Seq, external_tokens: int) -> None:
        """The request has its blocks: start its read, or tell the owner that there is none."""
        self._waiting.pop(seq.request_id, None)
        self._settle(seq, external_tokens)
        hold = self._holds.pop(seq.request_id, None)
        params = seq.kv_transfer_params
        if not params:
            return
        forward, bidirectional = params.get("do_remote_prefill"), self._bidirectional
        if params.get("do_remote_decode") or (forward and bidirectional):
            self._reqs_in_batch.add(seq.request_id)
        backward = params.get("do_remote_decode") and bidirectional
        if forward or (backward and not params.get("_remote_blocks_processed")):
            if params.get("remote_block_ids") and has_remote_blocks(params):
                first = seq.local_tokens // self.block_size
                last = blocks_for(seq.local_tokens + external_tokens, self.block_size)
                blocks = seq.blocks[first:last] if external_tokens else ()
                self.start_pull(Pull(seq, blocks, dict(params), hold))
            params["do_remote_prefill"] = False
            params["_remote_blocks_processed"] = True

    def landed(self, seq: Seq, *, ok: bool, moved: int, blocks: int, seconds: float) -> None:
        """A read has ended; ``moved`` bytes even if it came too late."""
        self.heartbeats.pop(seq.request_id, None)
        if (read := self._reads.get(seq.request_id)) is None:
            return
        if moved:
            read.transferred(moved, blocks, seconds)
        if not ok:
            read.fail()
        read.wall_seconds = self._retained.clock() - read.started

    # The owner.

    def finished(self, seq: Seq, reason: str) -> tuple[bool, Params | None]:
        """The request has ended: whether its blocks stay, and what its answer carries."""
        self._waiting.pop(seq.request_id, None)
        self.heartbeats.pop(seq.request_id, None)
        delay, params = self._stock_finished(seq, reason)
        params = self._finish(seq, delay, params)
        self._forget(seq.request_id)
        if delay and seq.request_id not in self._reqs_in_batch:
            # Stock: with neither flag set the workers never hear of it. Held for ever.
            del self._reqs_need_send[seq.request_id]
        return delay, params

    def _stock_finished(self, seq: Seq, reason: str) -> tuple[bool, Params | None]:
        params = seq.kv_transfer_params
        if not params:
            return False, None
        is_prefill = bool(params.get("do_remote_decode"))
        if params.get("do_remote_prefill"):  # aborted before it was scheduled
            params["do_remote_prefill"] = False
            if has_remote_blocks(params):
                self.start_pull(Pull(seq, (), dict(params)))
            return False, None
        if not is_prefill and not self._bidirectional:
            return False, None
        if reason not in _RETAINING:
            self._reqs_in_batch.discard(seq.request_id)
            return False, None
        ttl = self._options.kv_lease if is_prefill else self.decoder_kv_blocks_ttl
        expiry = self._reqs_need_send[seq.request_id] = self._retained.clock() + ttl
        host, port = self.side_channel
        answer: dict[str, Any] = {
            "do_remote_prefill": is_prefill,
            "do_remote_decode": not is_prefill,
            "remote_block_ids": [[block.block_id for block in seq.blocks]],
            "remote_engine_id": self.engine_id,
            "remote_request_id": seq.request_id,
            "remote_host": host,
            "remote_port": port,
            "tp_size": self._options.tp_size,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": seq.computed,
            "remote_blocks_expiry_time": None if is_prefill else expiry,
            "transfer_mode": "pull",
        }
        if self._options.vllm_version != "0.32":
            answer["remote_registration_generation"] = REGISTRATION_GENERATION
        return True, answer

    def notified(self, request_id: str) -> None:
        """A reader says that it is done."""
        self._notified.append(request_id)

    def heartbeat(self, request_ids: Sequence[str]) -> None:
        """Readers still wait: their leases get two thirds more."""
        until = self._retained.clock() + self._lease_extension()
        for request_id in request_ids:
            if (expiry := self._reqs_need_send.get(request_id)) is not None:
                self._reqs_need_send[request_id] = max(expiry, until)

    def step(self) -> list[str]:
        """Once per engine step: requests whose blocks are to be freed now."""
        self._make_room()
        released = self._released(self._retained.step())
        self._renew(self._retained.renewals())
        gone = [*released, *self._read(), *self._expired()]
        self._retained.finished(gone)
        return gone

    def _released(self, request_ids: Sequence[str]) -> list[str]:
        return [
            request_id for request_id in request_ids if self._let_go(request_id, State.RELEASED)
        ]

    def _renew(self, deadlines: Mapping[str, float]) -> None:
        for request_id, deadline in deadlines.items():
            if (held := self._reqs_need_send.get(request_id)) is not None:
                self._reqs_need_send[request_id] = max(held, deadline)
                self._retained.confirmed(request_id, deadline)

    def _read(self) -> list[str]:
        notified, self._notified = self._notified, []
        read = []
        for request_id in notified:
            if self._let_go(request_id, State.READ):
                read.append(request_id)
            else:
                self._counters.nixl_notifications_after_expiry += 1
                log.error("blocks of the unknown request %s were read", request_id)
        return read

    def _expired(self) -> list[str]:
        now = self._retained.clock()
        due = [request_id for request_id, at in self._reqs_need_send.items() if at <= now]
        for request_id in due:
            self._let_go(request_id, State.EXPIRED)
            self._counters.nixl_expired_requests += 1
        return due

    def _let_go(self, request_id: str, state: State) -> bool:
        if self._reqs_need_send.pop(request_id, None) is None:
            return False
        self._reqs_in_batch.discard(request_id)
        self._retained.seen(request_id, state)
        return True

    # What our decisions ask of an engine.

    def _context(self, request: Any) -> Context | None:
        salt = request.request.cache_salt
        return Context(self._options.model, self.block_size, cache_salt=salt)

    def _found_in_cache(self, request: Any) -> int | None:
        return None if request.output else request.local_tokens

    def _free_blocks(self) -> int | None:
        return self._pool.num_free

    def _may_pull(self) -> bool:
        return self._options.may_pull

    def _lease_extension(self) -> float:
        return self._options.kv_lease * 2 / 3

    def _get_remote_prefill_token_count(self, num_prompt_tokens: int) -> int:
        return num_prompt_tokens


def remote_address(params: Params) -> tuple[str, int]:
    """Host and port of the owner's side channel. Raises FabricError if they are none."""
    host, port = params["remote_host"], params["remote_port"]
    if not isinstance(host, str) or type(port) is not int or not 0 < port < 2**16:
        raise FabricError("the parameters name no side channel")
    return host, port


def lease_of(params: Params) -> Lease:
    """Whose blocks are to be read."""
    return str(params["remote_engine_id"]), str(params["remote_request_id"])


def remote_ids(params: Params) -> list[int]:
    """Block ids to read; empty if the parameters have none that can be used."""
    groups = remote_blocks(params)
    return list(groups[0]) if groups else []
