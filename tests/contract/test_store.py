"""The contract of ``contraflow.store.port.Store``, on every implementation."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Protocol

import pytest
from tests.support.clock import ManualClock
from tests.support.etcd import running_etcd

from contraflow.core.errors import RevisionCompacted, StoreUnavailable
from contraflow.runtime.clock import SystemClock
from contraflow.store.etcd import EtcdStore
from contraflow.store.etcd_binary import EtcdProcess
from contraflow.store.memory import MemoryStore
from contraflow.store.port import ABSENT, Batch, Change, LeaseNotFound, Store

_prefixes = itertools.count()


class Compactable(Store, Protocol):
    async def compact(self, revision: int) -> None: ...


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as process:
        yield process


@pytest.fixture(params=["memory", "etcd"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Compactable]:
    store: Compactable
    if request.param == "memory":
        store = MemoryStore(SystemClock())
    else:
        store = EtcdStore([request.getfixturevalue("etcd").address])
    yield store
    await store.close()


@pytest.fixture
def prefix() -> str:
    return f"test-{next(_prefixes)}/"


async def take(watch: AsyncIterator[Batch], count: int) -> list[Change]:
    """The next ``count`` changes at least, whole batches."""
    changes: list[Change] = []
    async with asyncio.timeout(20):
        while len(changes) < count:
            changes += (await anext(watch)).changes
    return changes


async def test_put_is_read_back_with_its_revision(store: Store, prefix: str) -> None:
    revision = await store.put({prefix + "a": b"1", prefix + "b": b"2"})
    items = await store.get([prefix + "b", prefix + "missing", prefix + "a"])
    assert [(item.value, item.revision) if item else None for item in items] == [
        (b"2", revision),
        None,
        (b"1", revision),
    ]


async def test_each_write_raises_the_revision(store: Store, prefix: str) -> None:
    first = await store.put({prefix + "a": b"1"})
    assert await store.put({prefix + "a": b"1"}) > first


async def test_list_is_ordered_and_bounded_by_the_prefix(store: Store, prefix: str) -> None:
    await store.put({prefix + "b": b"2", prefix + "a": b"1", "other-" + prefix: b"3"})
    items, revision = await store.list(prefix)
    assert [item.key for item in items] == [prefix + "a", prefix + "b"]
    assert revision >= max(item.revision for item in items)


async def test_put_if_absent_writes_once(store: Store, prefix: str) -> None:
    key = prefix + "a"
    revision = await store.put_if(key, b"1", ABSENT)
    assert revision is not None
    assert await store.put_if(key, b"2", ABSENT) is None
    [item] = await store.get([key])
    assert item is not None
    assert (item.value, item.revision) == (b"1", revision)


async def test_put_if_unchanged(store: Store, prefix: str) -> None:
    key = prefix + "a"
    revision = await store.put({key: b"1"})
    second = await store.put_if(key, b"2", revision)
    assert second is not None
    assert second > revision
    assert await store.put_if(key, b"3", revision) is None


async def test_delete_if_unchanged(store: Store, prefix: str) -> None:
    key = prefix + "a"
    old = await store.put({key: b"1"})
    revision = await store.put({key: b"2"})
    assert not await store.delete_if(key, old)
    assert await store.delete_if(key, revision)
    assert not await store.delete_if(key, revision)
    assert not await store.delete_if(key, ABSENT)
    assert await store.get([key]) == [None]


async def test_an_unknown_lease_is_refused_and_nothing_written(store: Store, prefix: str) -> None:
    with pytest.raises(LeaseNotFound):
        await store.put({prefix + "a": b"1"}, 12345)
    with pytest.raises(LeaseNotFound):
        await store.put_if(prefix + "a", b"1", ABSENT, 12345)
    with pytest.raises(LeaseNotFound):
        await store.keepalive(12345)
    await store.revoke(12345)
    assert await store.get([prefix + "a"]) == [None]


async def test_revoke_removes_the_keys_of_the_lease_in_one_revision(
    store: Store, prefix: str
) -> None:
    lease = await store.grant(60)
    await store.put({prefix + "a": b"1", prefix + "b": b"2"}, lease.lease_id)
    start = await store.put({prefix + "c": b"3"})
    await store.revoke(lease.lease_id)
    items, _ = await store.list(prefix)
    assert [item.key for item in items] == [prefix + "c"]
    async with aclosing(store.watch(prefix, start + 1)) as watch:
        changes = await take(watch, 2)
    assert {(change.key, change.item) for change in changes} == {
        (prefix + "a", None),
        (prefix + "b", None),
    }
    assert len({change.revision for change in changes}) == 1
    with pytest.raises(LeaseNotFound):
        await store.keepalive(lease.lease_id)


async def test_a_key_is_bound_to_the_lease_of_its_last_write(store: Store, prefix: str) -> None:
    old, new = await store.grant(60), await store.grant(60)
    await store.put({prefix + "a": b"1"}, old.lease_id)
    await store.put({prefix + "a": b"2"}, new.lease_id)
    await store.revoke(old.lease_id)
    [item] = await store.get([prefix + "a"])
    assert item is not None
    assert (item.value, item.lease_id) == (b"2", new.lease_id)


async def test_a_lease_without_keepalive_expires(store: Store, prefix: str) -> None:
    lease = await store.grant(1)
    assert lease.ttl >= 1
    assert await store.keepalive(lease.lease_id) >= 1
    revision = await store.put({prefix + "a": b"1"}, lease.lease_id)
    async with aclosing(store.watch(prefix, revision + 1)) as watch:
        assert [(c.key, c.item) for c in await take(watch, 1)] == [(prefix + "a", None)]
    with pytest.raises(LeaseNotFound):
        await store.put({prefix + "a": b"1"}, lease.lease_id)


async def test_watch_replays_and_follows_in_order(store: Store, prefix: str) -> None:
    first = await store.put({prefix + "a": b"1"})
    second = await store.put({prefix + "b": b"2"})
    async with aclosing(store.watch(prefix, first)) as watch:
        past = await take(watch, 2)
        assert await store.delete_if(prefix + "a", first)
        await store.put({"other-" + prefix: b"x"})
        third = await store.put({prefix + "c": b"3", prefix + "d": b"4"})
        later = await take(watch, 3)
    assert [(c.key, c.revision) for c in past] == [(prefix + "a", first), (prefix + "b", second)]
    assert (later[0].key, later[0].item) == (prefix + "a", None)
    assert {(c.key, c.revision) for c in later[1:]} == {
        (prefix + "c", third),
        (prefix + "d", third),
    }
    assert [c.item.value if c.item else None for c in past] == [b"1", b"2"]


async def test_batches_of_a_catch_up_carry_the_revision_of_their_changes(
    store: Store, prefix: str
) -> None:
    first = await store.put({prefix + "a": b"1"})
    await store.put({"other-" + prefix: b"x"})
    async with aclosing(store.watch(prefix, first)) as watch:
        batch = await anext(watch)
    assert batch.revision == first


async def test_watching_from_the_last_batch_loses_and_repeats_nothing(
    store: Store, prefix: str
) -> None:
    start = await store.put({prefix + "0": b""})
    for number in range(1, 6):
        await store.put({f"{prefix}{number}": b""})
    seen: list[str] = []
    while len(seen) < 6:
        async with aclosing(store.watch(prefix, start)) as watch:
            batch = await anext(watch)
            start = batch.revision + 1
            seen += [change.key.removeprefix(prefix) for change in batch.changes]
    assert seen == ["0", "1", "2", "3", "4", "5"]


async def test_a_compacted_revision_is_refused(store: Compactable, prefix: str) -> None:
    first = await store.put({prefix + "a": b"1"})
    await store.put({prefix + "a": b"2"})
    last = await store.put({prefix + "a": b"3"})
    await store.compact(last)
    async with asyncio.timeout(20):
        with pytest.raises(RevisionCompacted):
            async with aclosing(store.watch(prefix, first)) as watch:
                await anext(watch)
    async with aclosing(store.watch(prefix, last)) as watch:
        assert [change.revision for change in await take(watch, 1)] == [last]


async def test_close_ends_watches(store: Store, prefix: str) -> None:
    start = await store.put({prefix + "a": b"1"})
    async with aclosing(store.watch(prefix, start)) as watch:
        await take(watch, 1)
        pending = asyncio.ensure_future(anext(watch))
        await store.close()
        async with asyncio.timeout(20):
            with pytest.raises(StoreUnavailable):
                await pending
    with pytest.raises(StoreUnavailable):
        await store.list(prefix)


async def test_memory_leases_live_on_the_given_clock() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    lease = await store.grant(10)
    revision = await store.put({"a": b"1"}, lease.lease_id)
    await clock.wait_for_sleepers()
    clock.advance(9)
    await store.keepalive(lease.lease_id)
    clock.advance(9)
    await clock.wait_for_sleepers()
    assert await store.get(["a"]) != [None]
    clock.advance(1)
    async with aclosing(store.watch("", revision + 1)) as watch:
        assert [(c.key, c.item) for c in await take(watch, 1)] == [("a", None)]
    await store.close()
