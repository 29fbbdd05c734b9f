"""Handles and claims for the tests of the connector."""

from __future__ import annotations

from typing import Any

from contraflow.core.chain import Chain, Context
from contraflow.core.handle import ClaimRequest, Handle

SESSION = "5" * 32
TOKENS = list(range(100, 140))


class ManualTime:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def a_handle(request_id: str, *, session: str = SESSION, **fields: Any) -> Handle:
    """A retained handle with 480 s to live at 1000."""
    known = {
        "handle_id": f"e/{request_id}",
        "request_id": request_id,
        "tenant": "acme",
        "session_key": session,
        "num_tokens": len(TOKENS),
        "num_blocks": 3,
        "proof": Chain(Context("m", 16)).proof(TOKENS, len(TOKENS)),
        "params": {"remote_block_ids": [[1, 2, 3]], "remote_port": 5600, "future": None},
        "deadline": 1480.0,
        "retained_at": 1000.0,
    }
    return Handle(**{**known, **fields})


def ask(claim_id: str, **fields: Any) -> ClaimRequest:
    """A claim of 60 + 10 s."""
    return ClaimRequest(
        **{
            "claim_id": claim_id,
            "tenant": "acme",
            "session_key": SESSION,
            "start_by": 60.0,
            "max_read": 10.0,
            **fields,
        }
    )
