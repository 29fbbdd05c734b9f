"""The reader's side: what to pull, decided by proof against the reader's own tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from contraflow.core.chain import Chain
from contraflow.core.instructions import Instructions, Pull, Tip


class Outcome(StrEnum):
    """Values equal the enum names of ``contraflow.v1.PullOutcome``."""

    UNSPECIFIED = "UNSPECIFIED"
    PULLED = "PULLED"
    DECLINED_MISMATCH = "DECLINED_MISMATCH"
    DECLINED_SMALL = "DECLINED_SMALL"
    DECLINED_NO_PROOF = "DECLINED_NO_PROOF"
    DECLINED_UNSUPPORTED = "DECLINED_UNSUPPORTED"
    DECLINED_UNWANTED = "DECLINED_UNWANTED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Up to which token to pull, 0 for nothing; and why."""

    tokens: int
    outcome: Outcome
    proven: int = 0


@dataclass(slots=True)
class Read:
    """One request that was offered remote blocks, forward or backward.

    The scheduler may ask many times about one waiting request: everything is derived anew
    from ``offered_blocks``, so that trimming is idempotent.
    """

    instructions: Instructions
    forward: bool
    remote_engine_id: str
    remote_request_id: str
    offered_tokens: int
    offered_blocks: Sequence[Sequence[int]]
    verdict: Verdict = field(default_factory=lambda: Verdict(0, Outcome.UNSPECIFIED))
    local_tokens: int = 0
    pulled_tokens: int = 0
    bytes: int = 0
    descriptors: int = 0
    transfer_seconds: float = 0.0
    started: float = 0.0
    wall_seconds: float = 0.0

    @property
    def outcome(self) -> Outcome:
        """How it stands."""
        return self.verdict.outcome

    def fail(self) -> None:
        """The blocks did not arrive: everything is computed."""
        self.verdict = Verdict(0, Outcome.FAILED, self.verdict.proven)
        self.pulled_tokens = 0

    def transferred(self, moved: int, descriptors: int, seconds: float) -> None:
        """One rank's transfer: sum what was moved, keep the longest time."""
        self.bytes += moved
        self.descriptors += descriptors
        self.transfer_seconds = max(self.transfer_seconds, seconds)

    def report(self, prompt_tokens: int, local_tokens: int) -> Pull:
        """The report for router and agent."""
        return Pull(
            outcome=str(self.outcome),
            remote_engine_id=self.remote_engine_id,
            offered_tokens=self.offered_tokens,
            proven_tokens=self.verdict.proven,
            local_tokens=local_tokens,
            pulled_tokens=self.pulled_tokens,
            computed_tokens=max(0, prompt_tokens - local_tokens - self.pulled_tokens),
            bytes=self.bytes,
            descriptors=self.descriptors,
            transfer_seconds=self.transfer_seconds,
            wall_seconds=self.wall_seconds,
        )


def judge_backward(
    read: Read, chain: Chain, prompt: Sequence[int], local_tokens: int, *, trimmable: bool
) -> Verdict:
    """D→P: what the router wants of the longest proven prefix, if it is worth it beyond
    ``local_tokens``.

    At least one prompt token is left to compute, since its logits are needed. What is not wanted
    is compared all the same: the router learns whether the handle is one of this prompt.
    """
    told, proof = read.instructions, read.instructions.proof
    if proof is None:
        return Verdict(0, Outcome.DECLINED_NO_PROOF)
    proven = chain.proven(proof, prompt)
    if not told.wants_pull:
        return Verdict(0, Outcome.DECLINED_UNWANTED, proven)
    usable = min(proven, read.offered_tokens, len(prompt) - 1)
    whole = usable == proof.num_tokens == read.offered_tokens
    divisible = trimmable and proof.trimmable
    if not whole and not divisible:
        usable = 0
    if not _holds(read.offered_blocks, usable, proof.block_size, trimmable=trimmable):
        usable = 0
    if usable <= 0:
        return Verdict(0, Outcome.DECLINED_MISMATCH, proven)
    if told.pull_blocks is not None and (wanted := told.pull_blocks * proof.block_size) < usable:
        if not divisible:
            return Verdict(0, Outcome.DECLINED_UNSUPPORTED, proven)
        usable = wanted
    if usable - local_tokens < told.min_pull_tokens:
        return Verdict(0, Outcome.DECLINED_SMALL, proven)
    return Verdict(usable, Outcome.PULLED, proven)


def judge_forward(tip: Tip | None, chain: Chain, prompt: Sequence[int], wanted: int) -> Verdict:
    """P→D: all ``wanted`` prompt tokens or nothing, by the tip of P's chain."""
    if tip is None:
        return Verdict(0, Outcome.DECLINED_NO_PROOF)
    if tip.num_tokens != wanted or chain.tip(prompt, wanted) != tip.digest:
        return Verdict(0, Outcome.DECLINED_MISMATCH)
    return Verdict(wanted, Outcome.PULLED, wanted)


def cut_blocks(groups: Sequence[Sequence[int]], tokens: int, block_size: int) -> list[list[int]]:
    """The leading blocks of each group that hold ``tokens``.

    vLLM aligns remote and local lists at their ends, so the length must be exact.
    """
    keep = blocks_for(tokens, block_size)
    return [list(group[:keep]) for group in groups]


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that ``tokens`` fill, the last one perhaps in part."""
    return -(-tokens // block_size)


def _holds(
    groups: Sequence[Sequence[int]], tokens: int, block_size: int, *, trimmable: bool
) -> bool:
    # vLLM promises the tokens even if a list is too short, and reads whatever it aligns.
    if not groups or not all(groups):
        return False
    # Groups of a window or a state list only their last blocks; those were cut by the owner.
    return not trimmable or all(len(group) >= blocks_for(tokens, block_size) for group in groups)
