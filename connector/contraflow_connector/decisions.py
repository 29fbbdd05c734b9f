"""What a connector decides, whatever engine it is in: vLLM's, or the sim engine.

Proves before anything is pulled, retains with a proof, makes room for requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from contraflow.core.chain import Chain, Context
from contraflow.core.handle import Handle
from contraflow.core.instructions import Instructions, Pull, Tip
from contraflow.core.transfer_params import (
    OURS,
    REMOTE_KEYS,
    Params,
    has_remote_blocks,
    remote_blocks,
    without_private,
)
from contraflow.v1 import handle_pb2
from contraflow.wire.convert import duration
from contraflow_connector.guard import guarded
from contraflow_connector.holds import Hold
from contraflow_connector.reads import (
    Outcome,
    Read,
    Verdict,
    blocks_for,
    cut_blocks,
    judge_backward,
    judge_forward,
)
from contraflow_connector.retained import Retained

_FREE_FLOOR = 0.15
"""Share of all blocks that retained ones leave free."""


class AgentLink(Protocol):
    """What is asked of ``link.Link``."""

    def start(self) -> None:
        """Begin to attach."""

    def close(self) -> None:
        """End the link."""

    def silent_for(self) -> float:
        """Seconds since an agent was last there."""

    def report(self, report: handle_pb2.PullReport) -> None:
        """Pass on how a pull went."""


class Request(Protocol):
    """What is read off an engine's request."""

    request_id: str
    kv_transfer_params: Any
    prompt_token_ids: list[int]

    @property
    def all_token_ids(self) -> Sequence[int]:
        """Prompt and output."""

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""


class Decisions(ABC):
    """Mixed into a scheduler half, whose state it shares. Guarded: nothing here raises.

    The attributes without a value are vLLM's own; the abstract methods are for the half.
    """

    engine_id: str
    block_size: int
    decoder_kv_blocks_ttl: float
    _reqs_in_batch: set[str]
    _reqs_need_send: dict[str, float]
    _get_remote_prefill_token_count: Callable[[int], int]
    """Of a prompt's tokens, those that decode loads from prefill."""

    def _prepare(
        self,
        retained: Retained,
        *,
        bidirectional: bool,
        trimmable: bool,
        num_blocks: int,
        groups: int = 1,
    ) -> None:
        self._retained = retained
        self._bidirectional = bidirectional
        self._trimmable = trimmable
        self._num_blocks = num_blocks
        self._groups = groups
        self._link: AgentLink | None = None
        self._chains: dict[str, Chain] = {}
        self._reads: dict[str, Read] = {}
        self._found_locally: dict[str, int] = {}
        self._holds: dict[str, Hold] = {}  # reads that start in this step
        self._waiting: dict[str, int] = {}  # request id -> blocks; asked about in this step

    @abstractmethod
    def _context(self, request: Any) -> Context | None:
        """What binds the request's tokens; None if its prompt is not made of tokens."""

    @abstractmethod
    def _found_in_cache(self, request: Any) -> int | None:
        """Prompt tokens found in the engine's own prefix cache; None if that is not known."""

    @abstractmethod
    def _free_blocks(self) -> int | None:
        """Blocks that no request holds; None if that is not known."""

    @abstractmethod
    def _may_pull(self) -> bool:
        """Whether this engine may pull retained blocks."""

    @abstractmethod
    def _lease_extension(self) -> float:
        """Seconds, from its receipt, to which a heartbeat extends the lease of blocks here."""

    # Reading: what may be pulled.

    @guarded(None)
    def _note_waiting(self, request: Request) -> None:
        blocks = blocks_for(len(request.all_token_ids), self.block_size)
        self._waiting[request.request_id] = blocks * self._groups

    @guarded(False)
    def _admit(self, request: Request, local_tokens: int) -> bool:
        params = request.kv_transfer_params
        if not params or not (params.get("do_remote_prefill") or params.get("do_remote_decode")):
            return True
        if params.get("_remote_blocks_processed"):
            # Asked again after the blocks were allocated: the load failed or the request was
            # preempted. vLLM would promise the same tokens and never issue another read.
            return False
        read = self._reads.get(request.request_id) or self._new_read(request, params)
        if read is None:
            return True
        read.local_tokens = local_tokens
        read.verdict = self._judge(request, read, params)
        if read.verdict.tokens and not read.forward:
            params["remote_num_tokens"] = read.verdict.tokens
            if self._trimmable:
                params["remote_block_ids"] = cut_blocks(
                    read.offered_blocks, read.verdict.tokens, self.block_size
                )
        return read.verdict.tokens > 0

    def _new_read(self, request: Request, params: Params) -> Read | None:
        forward = bool(params.get("do_remote_prefill"))
        if not forward and not params.get("remote_block_ids"):
            return None
        tokens = params.get("remote_num_tokens")
        read = Read(
            instructions=Instructions.from_json(params.get(OURS)),
            forward=forward,
            remote_engine_id=str(params.get("remote_engine_id") or ""),
            remote_request_id=str(params.get("remote_request_id") or ""),
            offered_tokens=tokens if type(tokens) is int else 0,
            offered_blocks=remote_blocks(params),
        )
        self._reads[request.request_id] = read
        return read

    def _judge(self, request: Request, read: Read, params: Params) -> Verdict:
        chain = self._chain(request)
        if chain is None or (not read.forward and not self._may_pull()):
            return Verdict(0, Outcome.DECLINED_UNSUPPORTED)
        if not has_remote_blocks(params):
            return Verdict(0, Outcome.DECLINED_UNSUPPORTED)  # vLLM would take any host
        if Hold.of(params) is None:
            return Verdict(0, Outcome.DECLINED_UNSUPPORTED)  # it might be freed while we read
        prompt = request.prompt_token_ids
        if not read.forward:
            return judge_backward(read, chain, prompt, read.local_tokens, trimmable=self._trimmable)
        ours = params.get(OURS)
        tip = Tip.from_json(ours.get("tip")) if isinstance(ours, dict) else None
        wanted = self._get_remote_prefill_token_count(len(prompt))
        return judge_forward(tip, chain, prompt, wanted)

    @guarded(None)
    def _settle(self, request: Request, num_external_tokens: int) -> None:
        params = request.kv_transfer_params
        if params and (found := self._found_in_cache(request)) is not None:
            self._found_locally[request.request_id] = found
        read = self._reads.get(request.request_id)
        if read is None or params.get("_remote_blocks_processed"):
            return
        if num_external_tokens > 0:
            read.pulled_tokens = num_external_tokens
            read.started = self._retained.clock()
            if (hold := Hold.of(params)) is not None:
                self._holds[request.request_id] = hold
        elif not read.forward or not has_remote_blocks(params):
            # Without these keys vLLM finds nothing to read and nobody to notify.
            for key in REMOTE_KEYS:
                params.pop(key, None)
            if read.outcome is Outcome.PULLED:
                read.verdict = Verdict(0, Outcome.DECLINED_SMALL, read.verdict.proven)

    # Each step.

    @guarded(None)
    def _make_room(self) -> None:
        # Whoever asked and got no blocks waits for them, perhaps behind nothing but handles,
        # and would until these expire. A retained block must never cost a request.
        waiting = max(self._waiting.values(), default=0)
        self._waiting = {}
        free = self._free_blocks()
        if free is not None:
            floor = int(self._num_blocks * _FREE_FLOOR)
            self._retained.make_room(floor + waiting - free)

    # Retaining.

    def _finish(self, request: Request, delay: bool, params: Params | None) -> Params | None:
        asked = request.kv_transfer_params
        if not isinstance(asked, dict):
            return params
        read = self._reads.get(request.request_id)
        pull = self._pull_report(request, read)
        if pull is not None and read is not None:
            self._tell_agent(read, pull)
        if not delay or params is None:
            return params
        if asked.get("do_remote_decode"):
            return self._hand_over(request, params, pull)
        if not isinstance(asked.get(OURS), dict):
            return params  # Neither prefilled nor routed by us: as vLLM has it.
        # Nobody but the agent hands out a handle: no unclaimed parameters leave the engine.
        if not self._retain(request, params):
            self._retained.release_unlisted(request.request_id)
        return None

    def _forget(self, request_id: str) -> None:
        self._reads.pop(request_id, None)
        self._chains.pop(request_id, None)
        self._found_locally.pop(request_id, None)

    @guarded(None)
    def _pull_report(self, request: Request, read: Read | None) -> Pull | None:
        prompt = request.num_prompt_tokens
        found = self._found_locally.get(request.request_id)
        local = found if found is not None else read.local_tokens if read else 0
        if read is None:
            return Pull("UNSPECIFIED", local_tokens=local, computed_tokens=prompt - local)
        return read.report(prompt, local)

    @guarded(None)
    def _tell_agent(self, read: Read, pull: Pull) -> None:
        if self._link is None:
            return
        report = handle_pb2.PullReport(
            claim_id=read.instructions.claim_id,
            turn_id=read.instructions.turn_id,
            engine_id=self.engine_id,
            remote_engine_id=pull.remote_engine_id,
            outcome=f"PULL_OUTCOME_{pull.outcome}",
            offered_tokens=pull.offered_tokens,
            proven_tokens=pull.proven_tokens,
            local_tokens=pull.local_tokens,
            pulled_tokens=pull.pulled_tokens,
            computed_tokens=pull.computed_tokens,
            bytes=pull.bytes,
            descriptors=pull.descriptors,
            transfer_time=duration(pull.transfer_seconds),
            wall_time=duration(pull.wall_seconds),
        )
        self._link.report(report)

    def _hand_over(self, request: Request, params: Params, pull: Pull | None) -> Params:
        self._retained.hand_over(request.request_id)
        ours: dict[str, Any] = {}
        if pull is not None:
            ours["pull"] = pull.to_json()
        if tip := self._tip(request, params):
            ours["tip"] = tip.to_json()
        hold = Hold(self._reqs_need_send[request.request_id], self._lease_extension())
        return {**params, **hold.to_params(), OURS: ours}

    @guarded(None)
    def _tip(self, request: Request, params: Params) -> Tip | None:
        chain = self._chain(request)
        if chain is None:
            return None
        tokens = min(params["remote_num_tokens"], request.num_prompt_tokens)
        return Tip(chain.tip(request.prompt_token_ids, tokens), tokens)

    @guarded(False)
    def _retain(self, request: Request, params: Params) -> bool:
        """Put a handle into the table; False if the blocks are better freed now."""
        request_id = request.request_id
        # vLLM frees only what was in a batch; with neither flag set it forgot this request.
        self._reqs_in_batch.add(request_id)
        told = Instructions.from_json(request.kv_transfer_params[OURS])
        chain = self._chain(request)
        # The last sampled token has no KV yet; async scheduling may count beyond it.
        tokens = min(params["remote_num_tokens"], len(request.all_token_ids) - 1)
        if chain is None or not told.session_key or tokens <= 0 or self._unattended():
            return False
        blocks = params["remote_block_ids"]
        if self._trimmable:
            blocks = cut_blocks(blocks, tokens, self.block_size)
        elif tokens != params["remote_num_tokens"]:
            return False  # The state has run past the last token that is accepted.
        everything = request.all_token_ids
        handle = Handle(
            handle_id=f"{self.engine_id}/{request_id}",
            request_id=request_id,
            tenant=told.tenant,
            session_key=told.session_key,
            message_digest=told.message_digest,
            turn_id=told.turn_id,
            num_tokens=tokens,
            num_blocks=sum(len(group) for group in blocks),
            proof=chain.proof(everything, tokens, trimmable=self._trimmable),
            params={
                **without_private(params),
                "remote_num_tokens": tokens,
                "remote_block_ids": [list(group) for group in blocks],
            },
            deadline=self._reqs_need_send[request_id],
            retained_at=self._retained.clock(),
        )
        self._retained.retain(
            handle, lambda proof: chain.proven(proof, everything) == proof.num_tokens
        )
        return True

    def _unattended(self) -> bool:
        # Blocks that nobody can claim are rent for nothing.
        return self._link is None or self._link.silent_for() > self.decoder_kv_blocks_ttl

    def _chain(self, request: Request) -> Chain | None:
        chain = self._chains.get(request.request_id)
        if chain is None and (context := self._context(request)):
            chain = self._chains[request.request_id] = Chain(context)
        return chain
