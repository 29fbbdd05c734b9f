"""What a run must have met, and how often, for its silence to mean anything."""

from __future__ import annotations

from collections import Counter

from contraflow.core.handle import LIVE
from contraflow.router.report import Retry
from contraflow.verify.engines import TRANSITIONS

LEAST = 100

FAULTS = (
    "ANSWER_LOST", "CLIENT_LEFT", "CUT", "DELAY", "HTTP_REQUEST_LOST", "HTTP_RESET", "KILL_AGENT",
    "KILL_DECODE", "KILL_DIRECTORY", "KILL_PREFILL", "KILL_ROUTER", "LINK_BROKEN", "NOTICE_LOST",
    "PAUSE", "PROMPT_DRIFT", "READ_FAILED", "READ_SLOW", "REQUEST_LOST", "REQUEST_REPEATED",
    "STOP_DECODE", "STOP_PREFILL", "STORE_LOST", "STREAM_BROKEN", "WALL_JUMP",
)  # fmt: skip
DENIALS = (
    "AMBIGUOUS_SESSION", "ENGINE_ID_REUSED", "ENGINE_INCARNATION_STALE", "ENGINE_NOT_ATTACHED",
    "ENGINE_UNRESPONSIVE", "HANDLE_CLAIMED", "HANDLE_EXPIRED", "HANDLE_NOT_FOUND",
    "LEASE_TOO_SHORT", "TIMEOUT", "UNREACHABLE",
)  # fmt: skip
"""TENANT_MISMATCH is what intruders get."""
PULLS = ("DECLINED_MISMATCH", "DECLINED_SMALL", "DECLINED_UNWANTED", "FAILED", "PULLED")
USES = ("CUT", "KEPT", "RELEASED")


def required() -> list[str]:
    """Names of all that has to be met."""
    return [
        *FAULTS,
        *(f"handle {before or 'NEW'} -> {after}" for before, after in sorted(TRANSITIONS, key=str)),
        *(f"handle {state} -> LOST" for state in sorted(LIVE)),
        *(f"denied {reason}" for reason in DENIALS),
        "denied intruder",
        *(f"pull {outcome}" for outcome in PULLS),
        *(f"use {use}" for use in USES),
        *(f"retried {retry}" for retry in Retry),
        "drained decode", "drained prefill", "session ended",
        "plan NO_PREFILL_ENGINE", "plan PREFILL_UNREACHABLE", "plan SHORT_SUFFIX",
    ]  # fmt: skip


def missing(seen: Counter[str], least: int = LEAST) -> list[str]:
    """What was met less often than ``least`` times."""
    return [name for name in required() if seen[name] < least]
