"""Sessions and tenants: derived keys that reveal nothing without the cluster secret."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

KEY_HEX_DIGITS = 32
"""Length of a session key as text."""


def session_key(secret: bytes, tenant: str, session_id: str) -> str:
    """HMAC of tenant and session id, 128 bits as 32 hex digits.

    The only form of a session id that etcd, agents, logs and engines see.
    """
    return _hmac(secret, b"session", tenant, session_id)


def message_chain(
    secret: bytes, tenant: str, model: str, kind: str, messages: Iterable[bytes]
) -> list[bytes]:
    """One link of 32 bytes for each prefix of a conversation: link ``i`` covers messages 0 to i.

    ``messages`` are canonical; ``kind`` names the API whose form they have. A link is
    SHA-256 of its predecessor and its message, after a root that binds the other arguments.
    """
    link = _mac(secret, b"messages", tenant, model, kind).digest()
    links = []
    for message in messages:
        link = hashlib.sha256(link + message).digest()
        links.append(link)
    return links


def message_key(secret: bytes, link: bytes) -> str:
    """The session key of a conversation that has no id, as long as it consists of exactly the
    messages that ``link`` covers. Of the same form as ``session_key``."""
    return hmac.new(secret, b"prefix" + link, hashlib.sha256).hexdigest()[:KEY_HEX_DIGITS]


def cache_salt(secret: bytes, tenant: str, client_salt: str = "") -> str:
    """The salt that keeps one tenant's prefix-cache entries apart, 32 hex digits.

    A salt that the client sends still divides its own entries.
    """
    return _hmac(secret, b"salt", tenant, client_salt)


def is_session_key(text: str) -> bool:
    """True for 32 lower-case hex digits."""
    return len(text) == KEY_HEX_DIGITS and all(c in "0123456789abcdef" for c in text)


def _hmac(secret: bytes, purpose: bytes, *parts: str) -> str:
    return _mac(secret, purpose, *parts).hexdigest()[:KEY_HEX_DIGITS]


def _mac(secret: bytes, purpose: bytes, *parts: str) -> hmac.HMAC:
    # Length prefixes: ("ab", "c") and ("a", "bc") must not collide.
    message = purpose
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        message += len(data).to_bytes(4, "little") + data
    return hmac.new(secret, message, hashlib.sha256)
