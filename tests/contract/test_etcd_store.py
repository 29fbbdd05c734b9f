"""What only etcd can do wrong: endpoints that are dead or hang."""

from __future__ import annotations

import asyncio
import operator
import os
import random
import signal
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
from tests.support.etcd import running_etcd
from tests.support.wait import until

from contraflow.core.errors import StoreUnavailable
from contraflow.runtime.address import Address
from contraflow.runtime.config import ConfigError
from contraflow.store.etcd import EtcdStore
from contraflow.store.etcd_binary import EtcdBinary, EtcdProcess, find_etcd

DEAD = Address("127.0.0.1", 1)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as process:
        yield process


def all_threads_stopped(pid: int) -> bool:
    states = [
        path.read_text().rpartition(")")[2].split()[0]
        for path in Path(f"/proc/{pid}/task").glob("*/stat")
    ]
    return set(states) == {"T"}


@pytest.mark.parametrize("attempt", range(4))  # the client begins with a random endpoint
async def test_a_dead_endpoint_is_passed_over(etcd: EtcdProcess, attempt: int) -> None:
    store = EtcdStore([DEAD, etcd.address])
    key = f"failover-{attempt}"
    async with asyncio.timeout(30):
        assert await store.get([key]) == [None]
        async with aclosing(store.watch(key, 1)) as watch:
            seen = asyncio.ensure_future(anext(watch))
            revision = await store.put({key: b"1"})
            assert (await seen).revision == revision
    await store.close()


async def test_what_many_calls_suffer_from_one_endpoint_is_not_held_against_the_next(
    etcd: EtcdProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All begin at one that is silent, and give it up one after another."""
    monkeypatch.setattr(random, "choice", operator.itemgetter(0))
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    silent = Address("127.0.0.1", server.sockets[0].getsockname()[1])
    store = EtcdStore([silent, etcd.address], timeout=0.5)
    keys = [f"many-{number}" for number in range(4)]
    async with server, asyncio.timeout(60):
        found = await asyncio.gather(*(store.get([key]) for key in keys))
    assert found == [[None]] * len(keys)
    await store.close()


async def test_a_write_without_an_answer_is_not_repeated_and_the_next_goes_elsewhere(
    etcd: EtcdProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "choice", operator.itemgetter(0))
    store = EtcdStore([DEAD, etcd.address])
    with pytest.raises(StoreUnavailable):
        await store.put({"once": b"1"})
    assert await store.get(["once"]) == [None]
    revision = await store.put({"once": b"2"})
    assert [item and (item.value, item.revision) for item in await store.get(["once"])] == [
        (b"2", revision)
    ]
    await store.close()


async def test_no_live_endpoint_is_an_error() -> None:
    store = EtcdStore([DEAD, Address("127.0.0.1", 2)])
    with pytest.raises(StoreUnavailable):
        await store.put({"a": b"1"})
    with pytest.raises(StoreUnavailable):
        await store.list("a")
    with pytest.raises(StoreUnavailable):
        async with aclosing(store.watch("a", 1)) as watch:
            await anext(watch)
    await store.close()


async def test_a_hanging_etcd_is_an_error_and_then_none(etcd: EtcdProcess) -> None:
    store = EtcdStore([etcd.address], timeout=0.5)
    await store.put({"a": b"1"})
    os.kill(etcd.pid, signal.SIGSTOP)
    await until(lambda: all_threads_stopped(etcd.pid), "etcd hangs")
    try:
        async with asyncio.timeout(30):
            for call in (
                store.list("a"),
                store.grant(1),
                store.keepalive(1),
                store.put({"a": b"2"}),
            ):
                with pytest.raises(StoreUnavailable):
                    await call
    finally:
        os.kill(etcd.pid, signal.SIGCONT)
    async with asyncio.timeout(30):
        while True:
            try:
                await store.put({"a": b"3"})
                break
            except StoreUnavailable:
                await asyncio.sleep(0.05)
    await store.close()


def test_the_binary_says_what_it_is_fit_for() -> None:
    binary = find_etcd()
    assert binary.version >= (3, 4, 0)
    assert str(binary.path) in str(binary)


def test_one_that_survives_a_kill_goes_before_a_newer_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    versions = {"a": (3, 5, 1), "b": (3, 4, 23), "c": (3, 4, 22), "d": (3, 5, 0)}

    def inspect(path: Path, source: str) -> EtcdBinary:
        return EtcdBinary(path, versions[path.name], source)

    monkeypatch.delenv("ETCD_BIN", raising=False)
    monkeypatch.setattr(
        "contraflow.store.etcd_binary._candidates", lambda: [(Path(one), one) for one in versions]
    )
    monkeypatch.setattr("contraflow.store.etcd_binary._inspect", inspect)
    assert find_etcd().source == "b"


def test_a_wrong_etcd_bin_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETCD_BIN", "/bin/true")
    with pytest.raises(ConfigError, match=r"^ETCD_BIN: /bin/true is not an etcd binary$"):
        find_etcd()
