"""Whose request it is: API keys to tenants."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence

from contraflow.web import ApiError

DEFAULT_TENANT = "default"
"""Owner of every request where no tenants are configured."""

_CHALLENGE = ((b"www-authenticate", b"Bearer"),)


class Tenancy:
    """Maps bearer tokens to tenants."""

    def __init__(self, api_keys: Mapping[str, Sequence[str]]) -> None:
        """``api_keys`` by tenant; empty means that nobody has to authenticate."""
        # Looked up by a keyed digest: how long that takes says nothing about a key, and the
        # keys themselves are not kept.
        self._pepper = secrets.token_bytes(32)
        self._tenants = {
            self._digest(key.encode()): tenant for tenant, keys in api_keys.items() for key in keys
        }
        self.open = not self._tenants

    def tenant_of(self, authorization: bytes | None) -> str:
        """The tenant of an Authorization header. Raises ApiError 401."""
        if self.open:
            return DEFAULT_TENANT
        scheme, _, token = (authorization or b"").partition(b" ")
        if scheme.lower() != b"bearer" or not token.strip():
            raise _unauthorized("An API key is needed: 'Authorization: Bearer KEY'.")
        tenant = self._tenants.get(self._digest(token.strip()))
        if tenant is None:
            raise _unauthorized("The API key is not valid.")
        return tenant

    def _digest(self, key: bytes) -> bytes:
        return hmac.new(self._pepper, key, hashlib.sha256).digest()


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, headers=_CHALLENGE)
