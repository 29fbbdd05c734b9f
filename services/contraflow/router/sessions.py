"""Which session a request belongs to, and what the engines get to see of that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec import UNSET, Raw

from contraflow.core.session import cache_salt, session_key
from contraflow.web import BodyError, find_header, get_str, remove_key
from contraflow.web.headers import Headers
from contraflow.web.json_splice import Fields

SESSION_HEADER = b"x-session-id"
_XARGS = "vllm_xargs"


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose turn it is. The key is empty for a request that names no session."""

    tenant: str
    session_key: str
    cache_salt: str


def identify(secret: bytes, tenant: str, fields: Fields, headers: Headers) -> Identity:
    """Derive the identity of a request. Raises BodyError for ids of a wrong type."""
    session_id = _session_id(fields, headers)
    return Identity(
        tenant=tenant,
        session_key=session_key(secret, tenant, session_id) if session_id else "",
        cache_salt=cache_salt(secret, tenant, _client_salt(fields)),
    )


def engine_overrides(identity: Identity, fields: Fields) -> dict[str, Any]:
    """What both legs send in place of the client's session ids and salt."""
    overrides: dict[str, Any] = {
        "session_id": identity.session_key or UNSET,
        "conversation_id": UNSET,
        "prompt_cache_key": UNSET,
        "cache_salt": identity.cache_salt,
    }
    if _XARGS in fields:
        # vLLM takes a session id from there too, if it finds none elsewhere.
        cleaned, _ = remove_key(bytes(fields[_XARGS]), "session_id")
        overrides[_XARGS] = Raw(cleaned)
    return overrides


def _session_id(fields: Fields, headers: Headers) -> str:
    names = ("session_id", "conversation_id", "prompt_cache_key")
    first, second, third = (get_str(fields, name) for name in names)
    header = find_header(headers, SESSION_HEADER) or b""
    return first or header.decode("utf-8", "surrogateescape") or second or third or ""


def _client_salt(fields: Fields) -> str:
    salt = get_str(fields, "cache_salt")
    if salt == "":
        message = "Parameter 'cache_salt' must be a non-empty string if provided."
        raise BodyError(message, param="cache_salt")
    return salt or ""
