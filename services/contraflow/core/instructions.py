"""What router and connectors tell each other inside ``kv_transfer_params.contraflow``.

A JSON object; unknown keys are ignored, and anything of the wrong type counts as absent,
so that no version of one side can harm the other.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

from contraflow.core.chain import Proof
from contraflow.core.plan import Decision


@dataclass(frozen=True, slots=True)
class Instructions:
    """From the router, on both legs of a turn.

    A handle that comes with a prefill leg is pulled only if ``decision`` is PULL. Of its blocks
    the leading ``pull_blocks`` are pulled, as far as they are proven (None: all that are), less
    those of the local prefix cache; and none if these hold fewer than ``min_pull_tokens``.
    ``proof`` is set on a prefill leg with a handle.
    """

    tenant: str = ""
    session_key: str = ""
    turn_id: str = ""
    claim_id: str = ""
    decision: str = ""
    message_digest: str = ""
    min_pull_tokens: int = 1
    pull_blocks: int | None = None
    proof: Proof | None = None

    @property
    def wants_pull(self) -> bool:
        """False on any doubt."""
        return self.decision == Decision.PULL

    def to_json(self) -> dict[str, Any]:
        """The object to send; what is empty or means nothing is left out."""
        texts = {name: getattr(self, name) for name in _TEXTS if getattr(self, name)}
        out: dict[str, Any] = dict(texts)
        if self.min_pull_tokens > 1:
            out["min_pull_tokens"] = self.min_pull_tokens
        if self.pull_blocks is not None:
            out["pull_blocks"] = self.pull_blocks
        if self.proof is not None:
            out["proof"] = proof_to_json(self.proof)
        return out

    @classmethod
    def from_json(cls, value: object) -> Instructions:
        """What of ``value`` is understood."""
        if not isinstance(value, Mapping):
            return cls()
        texts = {name: value[name] for name in _TEXTS if isinstance(value.get(name), str)}
        least, blocks = value.get("min_pull_tokens"), value.get("pull_blocks")
        return cls(
            **texts,
            min_pull_tokens=least if type(least) is int and least > 0 else 1,
            pull_blocks=blocks if type(blocks) is int and blocks >= 0 else None,
            proof=proof_from_json(value.get("proof")),
        )


_TEXTS = ("tenant", "session_key", "turn_id", "claim_id", "decision", "message_digest")


@dataclass(frozen=True, slots=True)
class Tip:
    """From a prefill engine to the decode engine: which tokens its blocks hold."""

    digest: bytes
    num_tokens: int

    def to_json(self) -> dict[str, Any]:
        """The object to send."""
        return {"digest": self.digest.hex(), "num_tokens": self.num_tokens}

    @classmethod
    def from_json(cls, value: object) -> Tip | None:
        """The tip, or None if there is none that can be read."""
        if not isinstance(value, Mapping):
            return None
        digest, tokens = value.get("digest"), value.get("num_tokens")
        if not isinstance(digest, str) or type(tokens) is not int:
            return None
        try:
            return cls(bytes.fromhex(digest), tokens)
        except ValueError:
            return None


def proof_to_json(proof: Proof) -> dict[str, Any]:
    """Digests and tip in base64."""
    return {
        "block_size": proof.block_size,
        "num_tokens": proof.num_tokens,
        "digests": base64.b64encode(proof.digests).decode(),
        "tip": base64.b64encode(proof.tip).decode(),
        "trimmable": proof.trimmable,
    }


def proof_from_json(value: object) -> Proof | None:
    """The proof, or None if it can not be read or is malformed."""
    if not isinstance(value, Mapping):
        return None
    size, tokens = value.get("block_size"), value.get("num_tokens")
    digests, tip = value.get("digests"), value.get("tip")
    if type(size) is not int or type(tokens) is not int:
        return None
    if not isinstance(digests, str) or not isinstance(tip, str):
        return None
    try:
        proof = Proof(
            block_size=size,
            num_tokens=tokens,
            digests=base64.b64decode(digests, validate=True),
            tip=base64.b64decode(tip, validate=True),
            trimmable=value.get("trimmable") is True,
        )
    except (binascii.Error, ValueError):
        return None
    return proof if proof.is_well_formed() else None


@dataclass(frozen=True, slots=True)
class Pull:
    """Report of a connector on one pull, returned to the router with P's parameters.

    ``outcome`` is a name of ``contraflow.v1.PullOutcome`` without its prefix. Tokens:
    offered by the owner, proven equal, found locally, pulled, computed here. Bytes and
    descriptors are summed over ranks; times are the longest of any rank, in seconds.
    """

    outcome: str
    remote_engine_id: str = ""
    offered_tokens: int = 0
    proven_tokens: int = 0
    local_tokens: int = 0
    pulled_tokens: int = 0
    computed_tokens: int = 0
    bytes: int = 0
    descriptors: int = 0
    transfer_seconds: float = 0.0
    wall_seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The object to send."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, value: object) -> Pull | None:
        """The report, or None if there is none that can be read."""
        if not isinstance(value, Mapping) or not _is_name(value.get("outcome")):
            return None
        return cls(
            **{name: value[name] for name in _PULL_TEXTS if _is_name(value.get(name))},
            **{name: value[name] for name in _PULL_COUNTS if _is_count(value.get(name))},
            **{name: value[name] for name in _PULL_SECONDS if _is_span(value.get(name))},
        )


_PULL_TEXTS = ("outcome", "remote_engine_id")
_PULL_SECONDS = ("transfer_seconds", "wall_seconds")
_PULL_COUNTS = tuple(
    field.name for field in fields(Pull) if field.name not in _PULL_TEXTS + _PULL_SECONDS
)


def _is_name(value: object) -> bool:
    # It goes into a header, a metric and the log: as long as an engine id, and no longer.
    return isinstance(value, str) and len(value) <= 512


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**64


def _is_span(value: object) -> bool:
    return type(value) in (int, float) and 0 <= cast("float", value) < math.inf
