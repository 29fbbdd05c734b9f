"""The store in memory: for tests, and for a single directory whose content may be lost."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from contraflow.core.errors import RevisionCompacted, StoreUnavailable
from contraflow.runtime.clock import Clock
from contraflow.store.port import NO_LEASE, Batch, Change, Item, Lease, LeaseNotFound

_HISTORY = 10_000  # revisions kept for watches that start in the past


@dataclass(slots=True)
class _Lease:
    ttl: float
    expires_at: float
    expiry: asyncio.Task[None] | None = None
    keys: set[str] = field(default_factory=set)


class MemoryStore:
    """Satisfies ``contraflow.store.port.Store``. One event loop, no locks: no method awaits
    between reading and writing."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._items: dict[str, Item] = {}
        self._leases: dict[int, _Lease] = {}
        self._next_lease = 1
        self._revision = 1
        self._history: list[Batch] = []
        self._compacted = 0
        self._changed = asyncio.Condition()
        self._closed = False

    async def grant(self, ttl: float) -> Lease:
        """As the port says; whole seconds, like etcd."""
        self._require_open()
        lease_id, self._next_lease = self._next_lease, self._next_lease + 1
        whole = float(math.ceil(ttl))
        lease = _Lease(whole, self._clock.now() + whole)
        lease.expiry = asyncio.create_task(self._expire(lease_id, lease))
        self._leases[lease_id] = lease
        return Lease(lease_id, whole)

    async def keepalive(self, lease_id: int) -> float:
        """As the port says."""
        lease = self._lease(lease_id)
        lease.expires_at = self._clock.now() + lease.ttl
        return lease.ttl

    async def revoke(self, lease_id: int) -> None:
        """As the port says."""
        self._require_open()
        lease = self._leases.pop(lease_id, None)
        if lease is None:
            return
        if lease.expiry is not None and lease.expiry is not asyncio.current_task():
            lease.expiry.cancel()
        await self._write({}, lease.keys, NO_LEASE)

    async def put(self, items: Mapping[str, bytes], lease_id: int = NO_LEASE) -> int:
        """As the port says."""
        self._require_open()
        if lease_id != NO_LEASE:
            self._lease(lease_id)
        return await self._write(items, (), lease_id)

    async def put_if(
        self, key: str, value: bytes, expected: int, lease_id: int = NO_LEASE
    ) -> int | None:
        """As the port says."""
        if self._revision_of(key) != expected:
            return None
        return await self.put({key: value}, lease_id)

    async def delete_if(self, key: str, expected: int) -> bool:
        """As the port says."""
        self._require_open()
        if key not in self._items or self._revision_of(key) != expected:
            return False
        await self._write({}, (key,), NO_LEASE)
        return True

    async def get(self, keys: Sequence[str]) -> list[Item | None]:
        """As the port says."""
        self._require_open()
        return [self._items.get(key) for key in keys]

    async def list(self, prefix: str) -> tuple[list[Item], int]:
        """As the port says."""
        self._require_open()
        found = [self._items[key] for key in sorted(self._items) if key.startswith(prefix)]
        return found, self._revision

    async def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[Batch, None]:
        """As the port says."""
        position = start_revision
        while True:
            for batch in await self._from(position):
                position = batch.revision + 1
                changes = tuple(c for c in batch.changes if c.key.startswith(prefix))
                if changes:
                    yield Batch(batch.revision, changes)

    async def close(self) -> None:
        """As the port says."""
        self._closed = True
        for lease in self._leases.values():
            if lease.expiry is not None:
                lease.expiry.cancel()
        await self._notify()

    async def compact(self, revision: int) -> None:
        """Forget history before ``revision``."""
        self._compacted = max(self._compacted, revision)
        self._history = [batch for batch in self._history if batch.revision >= revision]
        await self._notify()

    async def _from(self, position: int) -> Iterable[Batch]:
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._closed or position < self._compacted or position <= self._revision
            )
        self._require_open()
        if position < self._compacted:
            raise RevisionCompacted(f"revision {position} is compacted")
        # One batch a revision, without a gap.
        first = self._history[0].revision if self._history else position
        return self._history[max(0, position - first) :]

    async def _write(self, puts: Mapping[str, bytes], removes: Iterable[str], lease_id: int) -> int:
        gone = sorted(key for key in removes if key in self._items)
        if not puts and not gone:
            return self._revision
        self._revision += 1
        changes = [self._put(key, value, lease_id) for key, value in puts.items()]
        changes += [self._remove(key) for key in gone]
        self._history.append(Batch(self._revision, tuple(changes)))
        if len(self._history) > _HISTORY:
            del self._history[0]
            self._compacted = self._history[0].revision
        revision = self._revision
        await self._notify()
        return revision

    def _put(self, key: str, value: bytes, lease_id: int) -> Change:
        self._unbind(key)
        item = Item(key, value, self._revision, lease_id)
        self._items[key] = item
        if lease_id != NO_LEASE:
            self._leases[lease_id].keys.add(key)
        return Change(key, item, self._revision)

    def _remove(self, key: str) -> Change:
        self._unbind(key)
        del self._items[key]
        return Change(key, None, self._revision)

    def _unbind(self, key: str) -> None:
        item = self._items.get(key)
        if item is not None and item.lease_id in self._leases:
            self._leases[item.lease_id].keys.discard(key)

    def _revision_of(self, key: str) -> int:
        item = self._items.get(key)
        return item.revision if item else 0

    def _lease(self, lease_id: int) -> _Lease:
        self._require_open()
        lease = self._leases.get(lease_id)
        if lease is None or lease.expires_at <= self._clock.now():
            raise LeaseNotFound(f"lease {lease_id}")
        return lease

    async def _expire(self, lease_id: int, lease: _Lease) -> None:
        while (left := lease.expires_at - self._clock.now()) > 0:
            await self._clock.sleep(left)
        await self.revoke(lease_id)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _require_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")
