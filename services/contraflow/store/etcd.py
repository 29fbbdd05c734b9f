"""The store on etcd, through the synchronous ``etcd3`` client and a few threads.

What the client leaves to us: it does not repeat a failed call on the next endpoint, holds the
failure of one endpoint against whichever another thread uses by then, and lets a watch end without
an error. So there is a client for each endpoint.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import Any, TypeVar

import etcd3
import etcd3.exceptions
import etcd3.utils
import grpc
import structlog

from contraflow.core.errors import RevisionCompacted, StoreUnavailable
from contraflow.runtime.address import Address
from contraflow.store.port import ABSENT, NO_LEASE, Batch, Change, Item, Lease, LeaseNotFound

log = structlog.get_logger()
ResultT = TypeVar("ResultT")

_THREADS = 4
_CHANNEL_OPTIONS = (
    # etcd closes connections that ping more often than every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
)
# A member cut off from its quorum then ends our watches instead of keeping them silent.
_REQUIRE_LEADER = (("hasleader", "true"),)


class EtcdStore:
    """Satisfies ``contraflow.store.port.Store`` on an etcd cluster, without TLS or users."""

    def __init__(self, endpoints: Sequence[Address], *, timeout: float = 1.0) -> None:
        """``timeout`` bounds each try; reads and repeatable writes get one per endpoint."""
        self._timeout = timeout
        self._clients = [_client(address, timeout) for address in endpoints]
        self._current = random.choice(self._clients)
        self._transactions = self._current.transactions
        self._turning = Lock()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="etcd")
        self._closed = False

    async def grant(self, ttl: float) -> Lease:
        """As the port says; whole seconds."""
        lease = await self._call(lambda client: client.lease(math.ceil(ttl)))
        return Lease(lease.id, float(lease.ttl))

    async def keepalive(self, lease_id: int) -> float:
        """As the port says."""
        responses = await self._call(lambda client: list(client.refresh_lease(lease_id)))
        # An ended lease is not an error to etcd, but an answer without a TTL.
        ttl = responses[0].TTL if responses else 0
        if ttl <= 0:
            raise LeaseNotFound(f"lease {lease_id}")
        return float(ttl)

    async def revoke(self, lease_id: int) -> None:
        """As the port says."""
        try:
            await self._call(lambda client: client.revoke_lease(lease_id))
        except LeaseNotFound:
            return

    async def put(self, items: Mapping[str, bytes], lease_id: int = NO_LEASE) -> int:
        """As the port says."""
        puts = [self._put(key, value, lease_id) for key, value in items.items()]
        # Once: what a member that hangs was asked for it may do much later, over a removal.
        _, responses = await self._transact([], puts, [], tries=1)
        return _last_revision(responses)

    async def put_if(
        self, key: str, value: bytes, expected: int, lease_id: int = NO_LEASE
    ) -> int | None:
        """As the port says."""
        put = self._put(key, value, lease_id)
        written, responses = await self._transact(
            [self._transactions.mod(key) == expected], [put], [], tries=1
        )
        return _last_revision(responses) if written else None

    async def delete_if(self, key: str, expected: int) -> bool:
        """As the port says."""
        if expected == ABSENT:
            return False
        deleted, _ = await self._transact(
            [self._transactions.mod(key) == expected],
            [self._transactions.delete(key)],
            [],
            tries=1,
        )
        return deleted

    async def get(self, keys: Sequence[str]) -> list[Item | None]:
        """As the port says."""
        gets = [self._transactions.get(key) for key in keys]
        _, responses = await self._transact([], gets, [])
        return [_first(found) for found in responses]

    async def list(self, prefix: str) -> tuple[list[Item], int]:
        """As the port says."""
        response = await self._call(lambda client: client.get_prefix_response(prefix))
        return [_item(kv) for kv in response.kvs], response.header.revision

    async def watch(self, prefix: str, start_revision: int) -> AsyncGenerator[Batch, None]:
        """As the port says."""
        arrived: asyncio.Queue[Any] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def hand_over(response: object) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(arrived.put_nowait, response)

        end = await self._call(partial(_open_watch, prefix, start_revision, hand_over))
        try:
            while True:
                response = await arrived.get()
                if isinstance(response, etcd3.exceptions.RevisionCompactedError):
                    raise RevisionCompacted(f"revision {start_revision} is compacted")
                if response is None or isinstance(response, Exception):
                    raise StoreUnavailable("the watch on etcd was lost") from response
                yield _batch(response)
        finally:
            end()

    async def close(self) -> None:
        """As the port says."""
        self._closed = True
        # Closing the channels ends the calls and watches that wait in threads.
        for client in self._clients:
            await asyncio.get_running_loop().run_in_executor(None, client.close)
        self._pool.shutdown(wait=False)

    async def compact(self, revision: int) -> None:
        """Forget history before ``revision``."""
        await self._call(lambda client: client.compact(revision))

    def _put(self, key: str, value: bytes, lease_id: int) -> Any:
        return self._transactions.put(key, value, lease_id)

    async def _transact(
        self, compare: Sequence[Any], success: Sequence[Any], failure: Sequence[Any],
        tries: int | None = None,
    ) -> tuple[bool, Sequence[Any]]:  # fmt: skip
        return await self._call(
            lambda client: client.transaction(compare, success, failure), tries=tries
        )

    async def _call(self, function: Callable[[Any], ResultT], tries: int | None = None) -> ResultT:
        """Call in a thread, on up to ``tries`` endpoints (None: all of them)."""
        if self._closed:
            raise StoreUnavailable("the connection to etcd is closed")
        tries = tries or len(self._clients)
        calling = asyncio.get_running_loop().run_in_executor(
            self._pool, partial(self._attempt, function, tries)
        )
        try:
            # One more than the tries may take: time to wait for a thread.
            async with asyncio.timeout((tries + 1) * self._timeout):
                return await calling
        except TimeoutError as error:
            raise StoreUnavailable("etcd does not answer") from error

    def _attempt(self, function: Callable[[Any], ResultT], tries: int) -> ResultT:
        while True:
            tries -= 1
            client = self._current
            try:
                return function(client)
            except etcd3.exceptions.Etcd3Exception as error:
                self._pass_over(client)
                if tries <= 0:
                    raise StoreUnavailable("etcd does not answer") from error
            except ValueError as error:
                raise StoreUnavailable("the connection to etcd is closed") from error
            except grpc.RpcError as error:
                if not _endpoint_failed(error):
                    raise _translated(error) from error
                self._pass_over(client)
                if tries <= 0:
                    raise _translated(error) from error

    def _pass_over(self, client: Any) -> None:
        # Of several threads that fail on one endpoint together only the first goes on to the next.
        with self._turning:
            if self._current is client:
                following = self._clients.index(client) + 1
                self._current = self._clients[following % len(self._clients)]


def _client(address: Address, timeout: float) -> Any:
    endpoint = etcd3.Endpoint(
        address.host, address.port, secure=False, opts=_CHANNEL_OPTIONS,
        time_retry=-math.inf,  # never kept out
    )  # fmt: skip
    client = etcd3.MultiEndpointEtcd3Client(endpoints=[endpoint], timeout=timeout)
    client.metadata = _REQUIRE_LEADER
    return client


def _open_watch(
    prefix: str, start_revision: int, callback: Callable[[object], None], client: Any
) -> Callable[[], None]:
    # A watcher of its own: the client closes its shared one whenever any call fails.
    watcher = client.get_watcher()
    try:
        watcher.add_callback(
            prefix, callback, start_revision=start_revision, progress_notify=True,
            range_end=etcd3.utils.prefix_range_end(prefix.encode()),
        )  # fmt: skip
    except Exception:
        watcher.close()
        raise
    return partial(watcher.close)


def _endpoint_failed(error: grpc.RpcError) -> bool:
    return error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def _translated(error: grpc.RpcError) -> Exception:
    if error.code() is grpc.StatusCode.NOT_FOUND:
        return LeaseNotFound(error.details())
    if error.code() is grpc.StatusCode.CANCELLED:
        return StoreUnavailable("the connection to etcd is closed")
    log.warning("etcd_call_failed", code=error.code().name, details=error.details())
    return StoreUnavailable("etcd does not answer")


def _last_revision(responses: Sequence[Any]) -> int:
    return int(responses[-1].response_put.header.revision)


def _first(found: Sequence[tuple[bytes, Any]]) -> Item | None:
    for value, metadata in found:
        return Item(metadata.key.decode(), value, metadata.mod_revision, metadata.lease_id)
    return None


def _item(kv: Any) -> Item:
    return Item(kv.key.decode(), kv.value, kv.mod_revision, kv.lease)


def _batch(response: Any) -> Batch:
    changes = tuple(_change(event) for event in response.events)
    # While a watch catches up the header tells the revision of the store, not of the events.
    revision = changes[-1].revision if changes else response.header.revision
    return Batch(revision, changes)


def _change(event: Any) -> Change:
    removed = isinstance(event, etcd3.events.DeleteEvent)
    key = event.key.decode()
    return Change(key, None if removed else _item(event), event.mod_revision)
