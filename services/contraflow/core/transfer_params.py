"""vLLM's ``kv_transfer_params`` as plain dicts: what to send, what to strip.

Keys that we do not know are carried unchanged. Source of the contract: vLLM's NIXL
connector, versions 0.32 and 0.33.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def are_nested_too_deeply(params: Mapping[str, Any]) -> bool:
    """True for what some parser or writer on the way may give up on; no engine's are."""
    level: list[Any] = [params]
    for _ in range(_MOST_LEVELS):
        below = (one.values() if isinstance(one, Mapping) else one for one in level)
        level = [one for some in below for one in some if isinstance(one, Mapping | list | tuple)]
        if not level:
            return False
    return True


_MOST_LEVELS = 64


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
    """True if a connector would find something to pull in ``params``.

    All that vLLM looks up, dials or counts with must be of its type: it checks none of it, and
    what is not would end the engine that is to read.
    """
    port = params.get("remote_port")
    return (
        all(isinstance(params.get(key), str) for key in _TEXTS)
        and (type(port) is int and 0 < port < 2**16)
        and all(_is_positive(params.get(key, 1)) for key in _SIZES)
        and any(remote_blocks(params))
    )


def remote_blocks(params: Mapping[str, Any]) -> Sequence[Sequence[int]]:
    """``remote_block_ids`` if it has the shape of one list of ids per group, else nothing."""
    value = params.get("remote_block_ids")
    if isinstance(value, list | tuple) and all(_are_ids(group) for group in value):
        return value
    return ()


_TEXTS = ("remote_engine_id", "remote_request_id", "remote_host")
_SIZES = ("tp_size", "dcp_size", "pp_size")


def _is_positive(value: object) -> bool:
    return type(value) is int and value > 0


def _are_ids(group: object) -> bool:
    if not isinstance(group, list | tuple) or not set(map(type, group)) <= {int}:
        return False
    return not group or (min(group) >= 0 and max(group) < 2**32)
