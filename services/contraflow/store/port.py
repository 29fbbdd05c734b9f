"""The store port: revisioned keys with leases, as etcd has them.

The contract, held by ``tests/contract/test_store.py`` on every implementation:

- Keys are text, values bytes. The store has one revision, a positive integer that grows by
  one with each write that changes something, however many keys it touches. Each item
  carries the revision of its last write.
- Reads are linearizable: a read sees every write that was acknowledged before it began, by
  whichever client.
- A lease ends when it is revoked, or its TTL passes without a keepalive; all keys bound to
  it go in one write. Writing a key binds it to the lease of that write only.
- ``watch`` delivers every change from ``start_revision`` on, once, in order; the changes of
  one revision are never torn apart between batches. To miss nothing: ``list``, then watch
  from the revision it returned plus one; after a loss, from the last batch's plus one.
- Every call ends within the implementation's timeout. StoreUnavailable says that the
  outcome of a write is unknown: it may or may not have happened.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

NO_LEASE = 0
ABSENT = 0
"""Expected revision of a key that must not exist."""


class LeaseNotFound(Exception):
    """The lease was never granted, was revoked, or has expired."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A granted lease. ``ttl`` in seconds may be longer than asked for."""

    lease_id: int
    ttl: float


@dataclass(frozen=True, slots=True)
class Item:
    """A key as it is; ``revision`` is that of its last write."""

    key: str
    value: bytes
    revision: int
    lease_id: int = NO_LEASE


@dataclass(frozen=True, slots=True)
class Change:
    """A key that was written (``item``) or removed (``item`` is None) at ``revision``."""

    key: str
    item: Item | None
    revision: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes up to and including ``revision``; without changes, a sign of progress."""

    revision: int
    changes: tuple[Change, ...] = ()


class Store(Protocol):
    """All methods raise StoreUnavailable when the store does not answer in time."""

    async def grant(self, ttl: float) -> Lease:
        """A new lease of at least ``ttl`` seconds, counted from this call."""
        ...

    async def keepalive(self, lease_id: int) -> float:
        """Extend a lease by its full TTL, which is returned. Raises LeaseNotFound."""
        ...

    async def revoke(self, lease_id: int) -> None:
        """End a lease and remove its keys; succeeds if it is gone."""
        ...

    async def put(self, items: Mapping[str, bytes], lease_id: int = NO_LEASE) -> int:
        """Write all keys in one revision, which is returned. At most 128 keys.

        Raises LeaseNotFound; then nothing is written.
        """
        ...

    async def put_if(
        self, key: str, value: bytes, expected: int, lease_id: int = NO_LEASE
    ) -> int | None:
        """Write a key if its revision is ``expected`` (ABSENT: if it does not exist).

        The revision written, or None if the key is another. Raises LeaseNotFound.
        """
        ...

    async def delete_if(self, key: str, expected: int) -> bool:
        """Remove a key if its revision is ``expected``; False if it is another or gone."""
        ...

    async def get(self, keys: Sequence[str]) -> list[Item | None]:
        """The items of the keys at one revision, in order. At most 128 keys."""
        ...

    async def list(self, prefix: str) -> tuple[list[Item], int]:
        """All items under ``prefix``, by key, and the revision of the store at which they
        are so."""
        ...

    def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[Batch, None]:
        """Changes under ``prefix`` from ``start_revision`` on, without end.

        Raises RevisionCompacted if history no longer reaches back that far. Close the
        iterator (``contextlib.aclosing``) to end the watch.
        """
        ...

    async def close(self) -> None:
        """Let go of connections and threads; watches end with StoreUnavailable."""
        ...
