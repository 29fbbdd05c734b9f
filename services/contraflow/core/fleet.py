"""What a router knows of the fleet: engines and sessions, as plain immutable values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from urllib.parse import urlsplit


def is_endpoint(text: str) -> bool:
    """True for ``http://host[:port]`` and nothing else: where a router can reach an engine."""
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        return False
    more = url.path not in ("", "/") or url.query or url.fragment or "@" in url.netloc
    odd = not text.isascii() or not text.isprintable() or " " in text or "%" in text
    if ":" in (url.hostname or "") and not url.netloc.startswith("["):
        return False
    return url.scheme == "http" and bool(url.hostname) and port != 0 and not more and not odd


class Role(StrEnum):
    """What an engine may be asked to do."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Engine:
    """One incarnation of one data-parallel rank. Fields as in ``contraflow.v1.Engine``."""

    engine_id: str
    boot_nonce: str
    role: Role
    endpoint: str
    agent_address: str = ""
    dp_rank: int = 0
    served_models: tuple[str, ...] = ()
    model: str = ""
    block_size: int = 0
    num_blocks: int = 0
    kv_dtype: str = ""
    tp_size: int = 1
    vllm_version: str = ""
    connector_version: int = 0
    bidirectional: bool = False
    trimmable: bool = True
    draining: bool = False
    compatibility_class: str = ""


@dataclass(frozen=True, slots=True)
class Session:
    """Where the newest handle of a conversation lives. A hint: the owner decides.

    ``expires_at`` and ``retained_at`` are instants on the reader's own monotonic clock, for
    people: another host's wall clock may stand behind them. A record goes when its handle does.
    ``branches`` counts live handles under the key at the home.
    """

    session_key: str
    engine_id: str
    agent_address: str
    handle_id: str
    num_tokens: int
    expires_at: float
    retained_at: float
    message_digest: str = ""
    branches: int = 1

    def says_the_same(self, other: Session) -> bool:
        """Equal but for the instants, which differ a little with each conversion."""
        then = replace(self, expires_at=other.expires_at, retained_at=other.retained_at)
        return then == other


@dataclass(frozen=True, slots=True)
class FleetView:
    """A snapshot of engines by id and sessions by key.

    ``homes`` are this router's own affinities: session key to the engine that served the
    last decode leg, known before the directory has heard of it. ``vanished`` engines have
    lost their registration, perhaps only because their agent is gone: they serve where no
    registered engine can, and are never pulled from.
    """

    engines: Mapping[str, Engine] = field(default_factory=dict)
    sessions: Mapping[str, Session] = field(default_factory=dict)
    homes: Mapping[str, str] = field(default_factory=dict)
    vanished: Mapping[str, Engine] = field(default_factory=dict)
