"""What became of a turn: the ``x-contraflow`` response header and the line in the log."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from contraflow.core.instructions import Pull

HEADER = b"x-contraflow"
_UNSAFE = re.compile(r"[^A-Za-z0-9._:/@+-]")


_NOT_COMPARED = frozenset({"DECLINED_NO_PROOF", "DECLINED_UNSUPPORTED"})


class Retry(StrEnum):
    """Why a leg was sent once more. Each happens at most once in a turn."""

    PREFILL_WITHOUT_HANDLE = "PREFILL_WITHOUT_HANDLE"
    """It failed with one."""
    PREFILL_RESENT = "PREFILL_RESENT"
    """The connection had died idle."""
    PREFILL_ELSEWHERE = "PREFILL_ELSEWHERE"
    """The engine could not be reached: another one."""
    DECODE_WITHOUT_BLOCKS = "DECODE_WITHOUT_BLOCKS"
    """It failed before its first byte, with blocks to pull from the prefill engine."""
    DECODE_RESENT = "DECODE_RESENT"
    """As PREFILL_RESENT, of a leg with no blocks to pull."""
    DECODE_ELSEWHERE = "DECODE_ELSEWHERE"
    """As PREFILL_ELSEWHERE."""


@dataclass(slots=True)
class TurnReport:
    """Filled while the turn runs. Times are in seconds, from the arrival of the request.

    ``lookup_key`` is the session key of the handle that was looked for, ``claimed_handle_id``
    the one that its owner granted. ``denial`` is a reason of the owner, TIMEOUT or UNREACHABLE.
    ``spent``: a prefill engine may have read the handle, so that it ends by its claim.
    ``taken``: a decode engine may have read what prefill has handed over. ``holder`` has the
    session's handle as far as is known. ``explores``: the decision is not the one that is expected
    sooner.
    """

    turn_id: str
    request_id: str
    tenant: str = ""
    session_key: str = ""
    lookup_key: str = ""
    model: str = ""
    decision: str = ""
    reason: str = ""
    denial: str = ""
    claimed_handle_id: str = ""
    prefill: str = ""
    decode: str = ""
    holder: str = ""
    explores: bool = False
    offered_tokens: int = 0
    retries: list[Retry] = field(default_factory=list)
    spent: bool = False
    taken: bool = False
    pull: Pull | None = None
    status: int = 0
    error: str = ""
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def discarded_tokens(self) -> int:
        """Tokens offered that the prefill engine could not prove to be its prompt's."""
        pull = self.pull
        if pull is None or pull.outcome in _NOT_COMPARED:
            return 0
        return max(0, pull.offered_tokens - pull.proven_tokens)

    @property
    def proven_handle_id(self) -> str:
        """The handle that was claimed, if the prefill engine has proven all of it to be its
        prompt's."""
        pull = self.pull
        proven = pull is not None and 0 < pull.offered_tokens <= pull.proven_tokens
        return self.claimed_handle_id if proven else ""

    def header(self) -> tuple[bytes, bytes]:
        """The header to the client: ``name=value`` pairs, empty ones left out. ``prefill_s`` is how
        long the prefill leg took, ``pull_s`` its pull, both in seconds."""
        pairs: dict[str, object] = {
            "turn": self.turn_id,
            "decision": self.decision,
            "reason": self.reason,
            "denial": self.denial,
            "retried": "+".join(self.retries),
            "offered": self.offered_tokens or "",
            **self._tokens(),
            **self._times(),
            "prefill": self.prefill,
            "decode": self.decode,
        }
        text = "; ".join(
            f"{name}={_UNSAFE.sub('_', str(value))}" for name, value in pairs.items() if value != ""
        )
        return HEADER, text.encode()

    def log_fields(self) -> dict[str, Any]:
        """One event of the log. Ids, counts and times only."""
        return {
            "turn_id": self.turn_id,
            "request_id": self.request_id,
            "tenant": self.tenant,
            "session_key": self.session_key,
            **({"lookup_key": self.lookup_key} if self.lookup_key != self.session_key else {}),
            "model": self.model,
            "status": self.status,
            "decision": self.decision,
            "reason": self.reason,
            "denial": self.denial,
            **({"explores": True} if self.explores else {}),
            "retried": "+".join(self.retries),
            "prefill": self.prefill,
            "decode": self.decode,
            **({"handle_id": self.claimed_handle_id} if self.claimed_handle_id else {}),
            "offered_tokens": self.offered_tokens,
            **self._tokens(),
            **{f"{name}_ms": round(value * 1e3, 2) for name, value in self.seconds.items()},
            **({"error": self.error} if self.error else {}),
        }

    def _times(self) -> dict[str, object]:
        times: dict[str, object] = {}
        if "prefill" in self.seconds:
            times["prefill_s"] = f"{self.seconds['prefill']:.4f}"
        if self.pull is not None and self.pull.pulled_tokens:
            times["pull_s"] = f"{self.pull.wall_seconds:.4f}"
        return times

    def _tokens(self) -> dict[str, object]:
        pull = self.pull
        if pull is None:
            return {}
        return {
            "discarded": self.discarded_tokens,
            "pulled": pull.pulled_tokens,
            "local": pull.local_tokens,
            "computed": pull.computed_tokens,
            "outcome": pull.outcome,
            "bytes": pull.bytes,
        }


def parse_header(text: str) -> dict[str, str]:
    """The pairs of an ``x-contraflow`` header."""
    pairs = (part.strip().partition("=") for part in text.split(";"))
    return {name: value for name, found, value in pairs if found}
