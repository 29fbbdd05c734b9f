"""vLLM's ``kv_transfer_params`` as plain dicts: what to send, what to strip.

Keys that we do not know are carried unchanged. Source of the contract: vLLM's NIXL
connector, versions 0.32 and 0.33.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Params = dict[str, Any]

OURS = "contraflow"
"""Key of the sub-object that carries what router and connectors tell each other."""

HOLD_UNTIL = "contraflow_hold_until"
"""Key of the instant, on the owner's monotonic clock, until which the blocks are held: those of a
claimed handle, or those that prefill hands over."""

HOLD_EXTENSION = "contraflow_hold_extension"
"""Key of the seconds, from its receipt, to which a heartbeat extends that; absent, none does."""

REMOTE_KEYS = (
    "remote_block_ids",
    "remote_engine_id",
    "remote_request_id",
    "remote_host",
    "remote_port",
)
"""Without any one of these a connector does not pull."""


def without_private(params: Mapping[str, Any]) -> Params:
    """``params`` without the keys that the engine keeps for itself (leading underscore)."""
    return {key: value for key, value in params.items() if not key.startswith("_")}


def for_plain_prefill() -> Params:
    """Parameters of a prefill leg that pulls nothing."""
    return {"do_remote_decode": True, "do_remote_prefill": False}


def for_pulling_prefill(handle_params: Mapping[str, Any]) -> Params:
    """Parameters of a prefill leg that pulls a handle: the owner's, with the flags of P."""
    return {
        **without_private(handle_params),
        "do_remote_decode": True,
        "do_remote_prefill": False,
    }


def for_decode(prefill_params: Mapping[str, Any]) -> Params:
    """Parameters of the decode leg: what the prefill engine returned."""
    return without_private(prefill_params)


def for_plain_decode() -> Params:
    """Parameters of a decode leg without a prefill leg that still retains its blocks.

    Not empty, since vLLM retains for non-empty parameters only.
    """
    return {"do_remote_decode": False, "do_remote_prefill": False}


def has_remote_blocks(params: Mapping[str, Any]) -> bool:
    """True if a connector would find something to pull in ``params``."""
    return all(params.get(key) is not None for key in REMOTE_KEYS)
