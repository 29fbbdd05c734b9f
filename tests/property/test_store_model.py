"""Any sequence of calls of a store against a naive model with etcd's semantics."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.support.clock import ManualClock
from tests.support.etcd import running_etcd

from contraflow.core.errors import RevisionCompacted
from contraflow.store.etcd import EtcdStore
from contraflow.store.etcd_binary import EtcdProcess
from contraflow.store.memory import MemoryStore
from contraflow.store.port import ABSENT, NO_LEASE, LeaseNotFound, Store

T = TypeVar("T")
KEYS = ("a", "ab", "b/c", "b/d")
TTL = 600.0
WITHIN_SECONDS = 5.0


class Compactable(Store, Protocol):
    async def compact(self, revision: int) -> None: ...


@dataclass
class Kept:
    """An item of the model."""

    value: bytes
    revision: int
    lease: int


@dataclass
class Model:
    """Keys as they are, and every change that there was: key, value or None, revision."""

    revision: int
    items: dict[str, Kept] = field(default_factory=dict)
    changes: list[tuple[str, bytes | None, int]] = field(default_factory=list)
    compacted: int = 0

    def put(self, values: dict[str, bytes], lease: int) -> int:
        self.revision += 1
        for key, value in values.items():
            self.items[key] = Kept(value, self.revision, lease)
            self.changes.append((key, value, self.revision))
        return self.revision

    def remove(self, keys: list[str]) -> None:
        if keys:
            self.revision += 1
        for key in keys:
            del self.items[key]
            self.changes.append((key, None, self.revision))

    def bound_to(self, lease: int) -> list[str]:
        return [key for key, kept in self.items.items() if kept.lease == lease]


class StoreMachine(RuleBasedStateMachine):
    """Leases and revisions are drawn from those that were ever there."""

    leases = Bundle("leases")
    revisions = Bundle("revisions")
    prefix = ""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        self.store = self.run(self.opened())
        _, revision = self.run(self.store.list(self.prefix))
        self.model = Model(revision)
        self.alive: dict[int, float] = {}
        """Leases by id, and when they end."""

    async def opened(self) -> Compactable:
        return MemoryStore(self.clock)

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    def teardown(self) -> None:
        self.run(self.store.close())
        self.runner.close()

    def key(self, name: str) -> str:
        return self.prefix + name

    def values(self, values: dict[str, bytes]) -> dict[str, bytes]:
        return {self.key(name): value for name, value in values.items()}

    @rule(target=leases)
    def grant(self) -> int:
        lease = self.run(self.store.grant(TTL))
        assert lease.ttl >= TTL
        assert lease.lease_id not in self.alive
        self.alive[lease.lease_id] = self.clock.now() + lease.ttl
        return lease.lease_id

    @rule(lease=leases)
    def keepalive(self, lease: int) -> None:
        if lease in self.alive:
            self.alive[lease] = self.clock.now() + self.run(self.store.keepalive(lease))
        else:
            with pytest.raises(LeaseNotFound):
                self.run(self.store.keepalive(lease))

    @rule(lease=leases)
    def revoke(self, lease: int) -> None:
        self.run(self.store.revoke(lease))
        self.end(lease)

    def end(self, lease: int) -> None:
        if self.alive.pop(lease, None) is not None:
            self.model.remove(self.model.bound_to(lease))

    @rule(
        target=revisions,
        values=st.dictionaries(st.sampled_from(KEYS), st.binary(max_size=2), min_size=1),
        lease=st.just(NO_LEASE) | leases,
    )
    def put(self, values: dict[str, bytes], lease: int) -> int:
        if lease != NO_LEASE and lease not in self.alive:
            with pytest.raises(LeaseNotFound):
                self.run(self.store.put(self.values(values), lease))
        else:
            written = self.run(self.store.put(self.values(values), lease))
            assert written == self.model.put(values, lease)
        return self.model.revision

    @rule(
        target=revisions,
        key=st.sampled_from(KEYS),
        value=st.binary(max_size=2),
        expected=st.just(ABSENT) | st.just(-1) | revisions,
        lease=st.just(NO_LEASE) | leases,
    )
    def put_if(self, key: str, value: bytes, expected: int, lease: int) -> int:
        held = self.model.items.get(key)
        revision = held.revision if held else ABSENT
        expected = revision if expected == -1 else expected
        call = self.store.put_if(self.key(key), value, expected, lease)
        if expected != revision:
            assert self.run(call) is None
        elif lease != NO_LEASE and lease not in self.alive:
            with pytest.raises(LeaseNotFound):
                self.run(call)
        else:
            assert self.run(call) == self.model.put({key: value}, lease)
        return self.model.revision

    @rule(key=st.sampled_from(KEYS), expected=st.just(ABSENT) | st.just(-1) | revisions)
    def delete_if(self, key: str, expected: int) -> None:
        held = self.model.items.get(key)
        expected = held.revision if held and expected == -1 else expected
        deletes = held is not None and held.revision == expected
        assert self.run(self.store.delete_if(self.key(key), max(expected, ABSENT))) is deletes
        if deletes:
            self.model.remove([key])

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4))
    def get(self, keys: list[str]) -> None:
        items = self.run(self.store.get([self.key(key) for key in keys]))
        found = [item and Kept(item.value, item.revision, item.lease_id) for item in items]
        assert found == [self.model.items.get(key) for key in keys]

    @rule(prefix=st.sampled_from(["", "a", "b/", "c"]))
    def list_under(self, prefix: str) -> None:
        items, revision = self.run(self.store.list(self.key(prefix)))
        assert revision == self.model.revision
        found = {
            item.key.removeprefix(self.prefix): Kept(item.value, item.revision, item.lease_id)
            for item in items
        }
        assert list(found) == sorted(found)
        expected = {key: it for key, it in self.model.items.items() if key.startswith(prefix)}
        assert found == expected

    @precondition(lambda self: self.model.changes)
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        first = max(self.model.compacted + 1, self.model.changes[0][2])
        if first <= self.model.revision:
            self.model.compacted = data.draw(st.integers(first, self.model.revision))
            self.run(self.store.compact(self.model.compacted))

    @rule(prefix=st.sampled_from(["", "a", "b/"]), start=revisions)
    def watch(self, prefix: str, start: int) -> None:
        """All that has changed since, once and in order, and nothing else."""
        if start < self.model.compacted:
            with pytest.raises(RevisionCompacted):
                self.run(self._changes(prefix, start, self.model.revision))
            return
        last = self.run(self.store.put({self.key(prefix + "~"): b""}))
        assert last == self.model.put({prefix + "~": b""}, NO_LEASE)
        expected = [
            change
            for change in self.model.changes
            if change[0].startswith(prefix) and change[2] >= start
        ]
        found = self.run(self._changes(prefix, start, last))
        assert [revision for _, _, revision in found] == [one[2] for one in expected]
        assert sorted(found, key=repr) == sorted(expected, key=repr)

    async def _changes(
        self, prefix: str, start: int, last: int
    ) -> list[tuple[str, bytes | None, int]]:
        found: list[tuple[str, bytes | None, int]] = []
        async with (
            asyncio.timeout(WITHIN_SECONDS),
            aclosing(self.store.watch(self.key(prefix), start)) as watch,
        ):
            async for batch in watch:
                for one in batch.changes:
                    value = one.item.value if one.item else None
                    found.append((one.key.removeprefix(self.prefix), value, one.revision))
                if batch.revision >= last:
                    break
        return found


class MemoryMachine(StoreMachine):
    """Time passes, too."""

    @rule(seconds=st.sampled_from([1.0, TTL / 2, TTL, 2 * TTL]))
    def wait(self, seconds: float) -> None:
        self.run(self._pass(seconds))
        over = [lease for lease, end in self.alive.items() if end <= self.clock.now()]
        for lease in sorted(over, key=lambda lease: (self.alive[lease], lease)):
            self.end(lease)

    async def _pass(self, seconds: float) -> None:
        # From one end of a lease to the next, as time does.
        until = self.clock.now() + seconds
        await asyncio.sleep(0)
        for end in sorted({end for end in self.alive.values() if end < until} | {until}):
            self.clock.advance(end - self.clock.now())
            for _ in range(10):
                await asyncio.sleep(0)


TestMemoryStore = MemoryMachine.TestCase
TestMemoryStore.settings = settings(deadline=None, stateful_step_count=40)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as process:
        yield process


@pytest.mark.integration
def test_etcd(etcd: EtcdProcess) -> None:
    examples = 0

    class EtcdMachine(StoreMachine):
        def __init__(self) -> None:
            nonlocal examples
            examples += 1
            self.prefix = f"model-{examples}/"
            super().__init__()

        async def opened(self) -> Compactable:
            return EtcdStore([etcd.address], timeout=WITHIN_SECONDS)

    several = settings(settings(), deadline=None, max_examples=settings().max_examples // 10)
    run_state_machine_as_test(EtcdMachine, settings=several)
