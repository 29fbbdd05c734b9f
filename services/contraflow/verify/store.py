"""etcd as far as a world needs it: a store that can be lost for a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

from contraflow.core.errors import StoreUnavailable
from contraflow.runtime.clock import Clock
from contraflow.store.memory import MemoryStore
from contraflow.store.port import NO_LEASE, Batch, Item, Lease
from contraflow.verify.net import Net, Part


class SharedStore:
    """Satisfies ``contraflow.store.port.Store`` for all directory replicas at once."""

    def __init__(self, net: Net, clock: Clock) -> None:
        self.part = Part("etcd")
        self.down = False
        self._net = net
        self._inner = MemoryStore(clock)
        self._went_down = asyncio.Event()

    def lose(self) -> None:
        """No quorum any more."""
        self.down = True
        self._went_down.set()

    def recover(self) -> None:
        """A quorum again, with everything that was acknowledged."""
        self.down = False
        self._went_down = asyncio.Event()

    async def _reach(self) -> MemoryStore:
        await self._net.travel(self.part.name)
        if self.down:
            raise StoreUnavailable("etcd has no leader")
        return self._inner

    async def grant(self, ttl: float) -> Lease:
        store = await self._reach()
        return await self.part.spawn(store.grant(ttl))

    async def keepalive(self, lease_id: int) -> float:
        return await (await self._reach()).keepalive(lease_id)

    async def revoke(self, lease_id: int) -> None:
        await (await self._reach()).revoke(lease_id)

    async def put(self, items: Mapping[str, bytes], lease_id: int = NO_LEASE) -> int:
        return await (await self._reach()).put(items, lease_id)

    async def put_if(
        self, key: str, value: bytes, expected: int, lease_id: int = NO_LEASE
    ) -> int | None:
        return await (await self._reach()).put_if(key, value, expected, lease_id)

    async def delete_if(self, key: str, expected: int) -> bool:
        return await (await self._reach()).delete_if(key, expected)

    async def get(self, keys: Sequence[str]) -> list[Item | None]:
        return await (await self._reach()).get(keys)

    async def list(self, prefix: str) -> tuple[list[Item], int]:
        return await (await self._reach()).list(prefix)

    async def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[Batch, None]:
        await self._reach()
        lost = asyncio.ensure_future(self._went_down.wait())
        try:
            async with aclosing(self._inner.watch(prefix, start_revision)) as batches:
                while True:
                    batch = asyncio.ensure_future(anext(batches))
                    try:
                        await asyncio.wait((batch, lost), return_when=asyncio.FIRST_COMPLETED)
                    except asyncio.CancelledError:
                        batch.cancel()
                        await asyncio.wait((batch,))
                        raise
                    if not batch.done():
                        batch.cancel()
                        await asyncio.wait((batch,))
                        raise StoreUnavailable("etcd has no leader")
                    yield batch.result()
        finally:
            lost.cancel()

    async def close(self) -> None:
        """Replicas come and go; the store stays."""

    async def keys(self) -> set[str]:
        """All that is recorded, whether anybody can reach it or not."""
        items, _ = await self._inner.list("")
        return {item.key for item in items}
