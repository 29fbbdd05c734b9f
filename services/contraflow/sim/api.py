"""What the HTTP half asks of the engine half, and what it gets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

Params = dict[str, Any]
TokenMask = Callable[[list[int]], set[int]]
"""Tokens that may follow those generated so far; an empty set ends the answer."""


@dataclass(slots=True)
class SimRequest:
    """One sequence to generate. Ids are unique among the engine's live requests."""

    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    temperature: float = 0.0
    seed: int | None = None
    mask: TokenMask | None = None
    kv_transfer_params: Params | None = None
    cache_salt: str = ""
    session_id: str = ""
    skip_prefix_cache: bool = False
    """Reads neither its own prefix cache nor remote blocks (prompt_logprobs)."""


@dataclass(frozen=True, slots=True)
class SimOutput:
    """A step of a request. ``kv_transfer_params`` come with ``finish_reason`` only."""

    token_ids: list[int]
    finish_reason: str | None = None
    kv_transfer_params: Params | None = None
    num_cached_tokens: int = 0
    """Prompt tokens that were not computed: own prefix cache and pulled."""


@dataclass(slots=True)
class SimCounters:
    """What ``/metrics`` shows, under vLLM's names. Tokens, bytes, requests, blocks."""

    prompt_tokens_local_cache_hit: int = 0
    prompt_tokens_external: int = 0
    prompt_tokens_computed: int = 0
    generation_tokens: int = 0
    nixl_bytes: int = 0
    nixl_descriptors: int = 0
    nixl_transfers: list[float] = field(default_factory=list)
    """Seconds of each transfer, newest last."""
    nixl_failed_transfers: int = 0
    nixl_expired_requests: int = 0
    nixl_notifications_after_expiry: int = 0
    requests_running: int = 0
    requests_waiting: int = 0
    preemptions: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    """Requests by finish reason."""
    kv_cache_usage: float = 0.0


class Engine(Protocol):
    """One data-parallel rank."""

    @property
    def counters(self) -> SimCounters:
        """Counts since the start, and what is so now."""

    def generate(self, request: SimRequest) -> AsyncIterator[SimOutput]:
        """Run a request. Closing the iterator aborts it.

        Raises ValueError, before the first step, for a prompt that does not fit.
        """

    async def start(self) -> None:
        """Begin to step, serve the side channel and attach to the agent."""

    async def close(self) -> None:
        """Abort everything and let go of all sockets and threads."""
