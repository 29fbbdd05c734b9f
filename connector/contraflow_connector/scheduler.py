"""The scheduler half: proves before it pulls, retains with a proof, speaks to the agent."""

from __future__ import annotations

import time
import uuid
from typing import Any

from contraflow.core.chain import Chain
from contraflow.core.handle import Handle
from contraflow.core.instructions import Instructions, Pull, Tip
from contraflow.core.transfer_params import (
    HOLD_UNTIL,
    OURS,
    REMOTE_KEYS,
    Params,
    has_remote_blocks,
    without_private,
)
from contraflow.v1 import handle_pb2
from contraflow.wire.convert import duration
from contraflow_connector.guard import guarded
from contraflow_connector.link import Link, claimed_params
from contraflow_connector.reads import (
    Outcome,
    Read,
    Verdict,
    blocks_for,
    cut_blocks,
    judge_backward,
    judge_forward,
    remote_blocks,
)
from contraflow_connector.retained import Retained
from contraflow_connector.settings import Settings
from contraflow_connector.vllm_compat import (
    EXPIRY_MARGIN_SECONDS,
    NixlConnectorMetadata,
    NixlPullConnectorScheduler,
    VllmConfig,
    WorkerReport,
    chain_context,
    describe_engine,
    free_blocks,
    local_cache_tokens,
    may_pull,
    put_holds,
    put_releases,
    warn_of_unsafe_roles,
)

_NOTHING: tuple[int, bool] = (0, False)
_FREE_FLOOR = 0.15
"""Share of all blocks that retained ones leave free."""


class ContraflowScheduler(NixlPullConnectorScheduler):
    """vLLM's pull scheduler. Every hook of ours is guarded: none may raise."""

    def __init__(
        self, vllm_config: VllmConfig, engine_id: str, kv_cache_config: Any, settings: Settings
    ):
        super().__init__(vllm_config, engine_id, kv_cache_config)
        self._settings = settings
        self._bidirectional = bool(self.is_bidirectional_kv_xfer_enabled)
        self._trimmable = not self._is_hma_required and not self._has_mamba
        self._retained = Retained(time.perf_counter)
        self._link: Link | None = None
        self._chains: dict[str, Chain] = {}
        self._reads: dict[str, Read] = {}
        self._found_locally: dict[str, int] = {}
        self._holds: dict[str, float] = {}  # reads that start in this step
        self._waiting: dict[str, int] = {}  # request id -> blocks; asked about in this step
        self.block_pool: Any = None
        warn_of_unsafe_roles(vllm_config, settings, self._bidirectional)

    def set_xfer_handshake_metadata(self, metadata: dict[tuple[int, int], Any]) -> None:
        """Called once all workers have registered their memory: only now may threads start."""
        super().set_xfer_handshake_metadata(metadata)
        self._start_link(metadata)

    @guarded(None)
    def _start_link(self, metadata: dict[tuple[int, int], Any]) -> None:
        if not self._settings.agent or self._link is not None:
            return
        engine = describe_engine(
            self.vllm_config,
            self._settings,
            engine_id=self.engine_id,
            boot_nonce=uuid.uuid4().hex,
            num_blocks=self.kv_cache_config.num_blocks,
            bidirectional=self._bidirectional
            and (self._settings.role == "decode" or self._may_pull()),
            trimmable=self._trimmable,
            compatibility_hash=next(iter(metadata.values())).compatibility_hash,
        )
        self._link = Link(self._settings.agent, engine, self._retained, self._offer)
        self._link.start()

    def shutdown(self) -> None:
        """Ends the link, then what vLLM started."""
        if self._link is not None:
            self._link.close()
        super().shutdown()

    # Reading: what may be pulled.

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """As vLLM's, for tokens that are proven to be the request's own."""
        self._note_waiting(request)
        if not self._admit(request, num_computed_tokens):
            return _NOTHING
        result: tuple[int | None, bool] = super().get_num_new_matched_tokens(
            request, num_computed_tokens
        )
        return result

    @guarded(None)
    def _note_waiting(self, request: Any) -> None:
        groups = len(self.kv_cache_config.kv_cache_groups)
        needed = blocks_for(len(request.all_token_ids), self.block_size) * groups
        self._waiting[request.request_id] = needed

    @guarded(False)
    def _admit(self, request: Any, local_tokens: int) -> bool:
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

    def _new_read(self, request: Any, params: Params) -> Read | None:
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

    def _judge(self, request: Any, read: Read, params: Params) -> Verdict:
        chain = self._chain(request)
        if chain is None or (not read.forward and not self._may_pull()):
            return Verdict(0, Outcome.DECLINED_UNSUPPORTED)
        prompt = request.prompt_token_ids
        if not read.forward:
            if not has_remote_blocks(params):
                return Verdict(0, Outcome.DECLINED_UNSUPPORTED)  # vLLM would take a null host
            return judge_backward(read, chain, prompt, read.local_tokens, trimmable=self._trimmable)
        ours = params.get(OURS)
        tip = Tip.from_json(ours.get("tip")) if isinstance(ours, dict) else None
        wanted = self._get_remote_prefill_token_count(len(prompt))
        return judge_forward(tip, chain, prompt, wanted)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """As vLLM's, but a handle that is not pulled is kept: its owner is not notified."""
        self._waiting.pop(request.request_id, None)
        self._settle(request, num_external_tokens)
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    @guarded(None)
    def _settle(self, request: Any, num_external_tokens: int) -> None:
        params = request.kv_transfer_params
        if params and (found := local_cache_tokens(request)) is not None:
            self._found_locally[request.request_id] = found
        read = self._reads.get(request.request_id)
        if read is None or params.get("_remote_blocks_processed"):
            return
        if num_external_tokens > 0:
            read.pulled_tokens = num_external_tokens
            read.started = time.perf_counter()
            if isinstance(hold := params.get(HOLD_UNTIL), float):
                self._holds[request.request_id] = hold
        elif not read.forward:
            # Without these keys vLLM finds nothing to read and nobody to notify.
            for key in REMOTE_KEYS:
                params.pop(key, None)
            if read.outcome is Outcome.PULLED:
                read.verdict = Verdict(0, Outcome.DECLINED_SMALL, read.verdict.proven)

    # Each step.

    def build_connector_meta(self, scheduler_output: Any) -> NixlConnectorMetadata:
        """As vLLM's, with what the workers shall free and until when they may read."""
        metadata = super().build_connector_meta(scheduler_output)
        self._make_room()
        self._tell_workers(metadata)
        return metadata

    @guarded(None)
    def _make_room(self) -> None:
        # Whoever asked and got no blocks waits for them, perhaps behind nothing but handles,
        # and would until these expire. A retained block must never cost a request.
        waiting = max(self._waiting.values(), default=0)
        self._waiting = {}
        if self.block_pool is None:
            return
        floor = int(self.kv_cache_config.num_blocks * _FREE_FLOOR)
        self._retained.make_room(floor + waiting - free_blocks(self.block_pool))

    @guarded(None)
    def _tell_workers(self, metadata: NixlConnectorMetadata) -> None:
        put_releases(metadata, self._retained.step())
        put_holds(metadata, self._holds)
        self._holds = {}

    def update_connector_output(self, connector_output: Any) -> None:
        """As vLLM's; learns what was read, what expired, and how pulls went."""
        super().update_connector_output(connector_output)
        self._learn(connector_output)

    @guarded(None)
    def _learn(self, output: Any) -> None:
        report = output.kv_connector_worker_meta
        if isinstance(report, WorkerReport):
            for request_id, state in report.events.ends:
                self._retained.seen(request_id, state)
            for one in report.events.transfers:
                if read := self._reads.get(one.request_id):
                    read.transferred(one.bytes, one.descriptors, one.seconds)
        for request_id in output.failed_recving or ():
            if read := self._reads.get(request_id):
                read.fail()
        for request_id in output.finished_recving or ():
            if (read := self._reads.get(request_id)) and read.started:
                read.wall_seconds = time.perf_counter() - read.started
        self._retained.finished(output.finished_sending or ())

    # Retaining.

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        """As vLLM's; P adds its tip and its report, D keeps a handle."""
        delay, params = super().request_finished(request, block_ids)
        params = self._finish(request, delay, params)
        self._reads.pop(request.request_id, None)
        self._chains.pop(request.request_id, None)
        self._found_locally.pop(request.request_id, None)
        return delay, params

    def _finish(self, request: Any, delay: bool, params: Params | None) -> Params | None:
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

    @guarded(None)
    def _pull_report(self, request: Any, read: Read | None) -> Pull | None:
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

    def _hand_over(self, request: Any, params: Params, pull: Pull | None) -> Params:
        ours: dict[str, Any] = {}
        if pull is not None:
            ours["pull"] = pull.to_json()
        if tip := self._tip(request, params):
            ours["tip"] = tip.to_json()
        return {**params, OURS: ours}

    @guarded(None)
    def _tip(self, request: Any, params: Params) -> Tip | None:
        chain = self._chain(request)
        if chain is None:
            return None
        tokens = min(params["remote_num_tokens"], request.num_prompt_tokens)
        return Tip(chain.tip(request.prompt_token_ids, tokens), tokens)

    @guarded(False)
    def _retain(self, request: Any, params: Params) -> bool:
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
        )
        self._retained.retain(
            handle, lambda proof: chain.proven(proof, everything) == proof.num_tokens
        )
        return True

    def _unattended(self) -> bool:
        # Blocks that nobody can claim are rent for nothing.
        return self._link is None or self._link.silent_for() > self.decoder_kv_blocks_ttl

    @staticmethod
    def _offer(handle: Handle) -> Params:
        return claimed_params(handle, EXPIRY_MARGIN_SECONDS)

    def _may_pull(self) -> bool:
        return may_pull(self.vllm_config, self._bidirectional)

    def _chain(self, request: Any) -> Chain | None:
        chain = self._chains.get(request.request_id)
        if chain is None and (context := chain_context(self.vllm_config, request)):
            chain = self._chains[request.request_id] = Chain(context)
        return chain
