"""The directory over real gRPC on a real etcd: what agents and routers see."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
from tests.support.etcd import running_etcd
from tests.support.running_directory import on_etcd, running_directory, until_healthy
from tests.support.wait import until

from contraflow.core.errors import (
    ContraflowError,
    EngineIdReused,
    NotFound,
    RegistrationNotFound,
    RevisionCompacted,
)
from contraflow.core.fleet import Engine, Role, Session
from contraflow.directory.config import LimitsConfig
from contraflow.runtime.address import Address
from contraflow.runtime.clock import SystemClock
from contraflow.runtime.directory_client import DirectoryClient
from contraflow.runtime.fleet_replica import FleetReplica
from contraflow.runtime.grpc_errors import domain_errors
from contraflow.store.etcd_binary import EtcdProcess
from contraflow.v1 import directory_service_pb2 as pb
from contraflow.v1 import engine_pb2, session_pb2
from contraflow.v1.directory_service_pb2_grpc import DirectoryServiceStub
from contraflow.wire.convert import engine_to_proto

pytestmark = pytest.mark.integration

CLOCK = SystemClock()
KEY = "0123456789abcdef" * 2
_prefixes = itertools.count()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as process:
        yield process


@pytest.fixture
def prefix() -> str:
    return f"test-{next(_prefixes)}"


@pytest.fixture
async def directory(etcd: EtcdProcess, prefix: str) -> AsyncIterator[Address]:
    async with running_directory(on_etcd(etcd, prefix)) as address:
        await until_healthy(address)
        yield address


@pytest.fixture
async def client(directory: Address) -> AsyncIterator[DirectoryClient]:
    client = DirectoryClient([directory], CLOCK, quiet_timeout=5.0)
    yield client
    await client.close()


@pytest.fixture
async def replica(client: DirectoryClient) -> AsyncIterator[FleetReplica]:
    replica = FleetReplica(CLOCK)
    following = asyncio.create_task(client.follow(replica))
    await until(replica.synced.is_set, "the first snapshot")
    yield replica
    following.cancel()


def engine(name: str = "e1", nonce: str = "n1") -> Engine:
    return Engine(
        name, nonce, Role.DECODE, "http://127.0.0.1:1", agent_address="127.0.0.1:2",
        served_models=("m",), block_size=16, num_blocks=100,
    )  # fmt: skip


def session(handle: str = "h1", key: str = KEY) -> Session:
    return Session(key, "e1", "127.0.0.1:2", handle, 100, CLOCK.now() + 60, CLOCK.now(), "d")


async def test_an_engine_lives_as_long_as_its_lease(
    client: DirectoryClient, replica: FleetReplica
) -> None:
    registration = await client.register(engine(), 1)
    assert registration.ttl >= 1
    await until(lambda: "e1" in replica.engines, "the engine is there")
    assert replica.engines["e1"] == engine()
    renewed = await client.renew(registration.registration_id)
    assert renewed.expires_at > registration.expires_at
    assert await client.publish(registration.registration_id, [session()]) == [None]
    await until(lambda: KEY in replica.sessions, "the session is there")
    await until(lambda: not replica.engines and not replica.sessions, "the lease has ended")
    with pytest.raises(RegistrationNotFound):
        await client.renew(registration.registration_id)


async def test_an_id_in_use_is_refused(client: DirectoryClient) -> None:
    await client.register(engine(), 60)
    with pytest.raises(EngineIdReused) as caught:
        await client.register(engine(nonce="n2"), 60)
    assert caught.value.metadata == {"engine_id": "e1"}


async def test_sessions_are_published_and_withdrawn(
    client: DirectoryClient, replica: FleetReplica
) -> None:
    registration = (await client.register(engine(), 60)).registration_id
    outcomes = await client.publish(registration, [session("h1"), session("h1", key="bad")])
    assert [outcome and outcome.reason for outcome in outcomes] == [None, "INVALID_ARGUMENT"]
    await until(lambda: KEY in replica.sessions, "the session is there")
    left = replica.sessions[KEY].expires_at - CLOCK.now()
    assert 30 < left <= 61
    await client.withdraw([(KEY, "another")])
    await client.publish(registration, [session("h2")])
    await until(lambda: replica.sessions[KEY].handle_id == "h2", "the newer handle")
    await client.withdraw([(KEY, "h2")])
    await until(lambda: not replica.sessions, "the session is gone")
    await client.deregister(registration)
    await until(lambda: not replica.engines, "the engine is gone")


async def test_two_replicas_serve_each_others_data(
    etcd: EtcdProcess, prefix: str, client: DirectoryClient, replica: FleetReplica
) -> None:
    async with running_directory(on_etcd(etcd, prefix)) as second:
        other = DirectoryClient([second], CLOCK)
        registration = (await other.register(engine(), 60)).registration_id
        await client.renew(registration)
        await client.publish(registration, [session()])
        await until(lambda: KEY in replica.sessions, "the other's engine and session")
        await other.withdraw([(KEY, "h1")])
        await until(lambda: not replica.sessions, "the other's withdrawal")
        await client.deregister(registration)
        with pytest.raises(RegistrationNotFound):
            await other.renew(registration)
        await other.close()


async def test_a_client_uses_the_next_address(directory: Address) -> None:
    dead = Address("127.0.0.1", 1)
    client = DirectoryClient([dead, directory], CLOCK, call_timeout=2.0)
    replica = FleetReplica(CLOCK)
    following = asyncio.create_task(client.follow(replica))
    await until(replica.synced.is_set, "a snapshot in spite of a dead address")
    await client.register(engine(), 60)
    await until(lambda: "e1" in replica.engines, "the engine")
    following.cancel()
    await client.close()


async def test_a_follower_survives_the_restart_of_its_directory(
    etcd: EtcdProcess, prefix: str
) -> None:
    async with running_directory(on_etcd(etcd, prefix)) as address:
        client = DirectoryClient([address], CLOCK)
        replica = FleetReplica(CLOCK)
        following = asyncio.create_task(client.follow(replica))
        registration = (await client.register(engine(), 60)).registration_id
        await until(lambda: "e1" in replica.engines, "the engine")
    assert "e1" in replica.engines
    async with running_directory(on_etcd(etcd, prefix, listen=address)):
        await client.publish(registration, [session()])
        await until(lambda: KEY in replica.sessions, "news from the new process")
    following.cancel()
    await client.close()


async def take(call: AsyncIterator[pb.WatchResponse], count: int) -> list[pb.WatchResponse]:
    """The next ``count`` responses besides progress."""
    taken: list[pb.WatchResponse] = []
    async with asyncio.timeout(20):
        while len(taken) < count:
            response = await anext(call)
            if not response.HasField("progress"):
                taken.append(response)
    return taken


async def test_watch_by_hand(directory: Address, client: DirectoryClient) -> None:
    await client.register(engine(), 60)
    async with grpc.aio.insecure_channel(str(directory)) as channel:
        stub = DirectoryServiceStub(channel)
        first = stub.Watch(pb.WatchRequest())
        kinds = [r.WhichOneof("event") for r in await take(aiter(first), 2)]
        assert kinds in (["engine", "snapshot_end"], ["snapshot_end", "engine"])
        await client.register(engine("e2"), 60)
        [delta] = await take(aiter(first), 1)
        assert delta.engine.engine_id == "e2"
        first.cancel()
        await client.register(engine("e3"), 60)
        resumed = stub.Watch(pb.WatchRequest(start_revision=delta.revision - 1))
        ids = [r.engine.engine_id for r in await take(aiter(resumed), 2)]
        assert ids == ["e2", "e3"]
        async with asyncio.timeout(20):
            while not (await anext(aiter(resumed))).HasField("progress"):
                pass
        resumed.cancel()


async def test_watch_of_a_compacted_revision(etcd: EtcdProcess, prefix: str) -> None:
    config = on_etcd(etcd, prefix, limits=LimitsConfig(watch_history=2))
    async with running_directory(config) as address:
        client = DirectoryClient([address], CLOCK)
        replica = FleetReplica(CLOCK)
        following = asyncio.create_task(client.follow(replica))
        await until(replica.synced.is_set, "the first snapshot")
        start = replica.revision
        for number in range(4):
            await client.register(engine(f"e{number}"), 60)
        await until(lambda: len(replica.engines) == 4, "all engines")
        async with grpc.aio.insecure_channel(str(address)) as channel:
            stub = DirectoryServiceStub(channel)
            with pytest.raises(RevisionCompacted), domain_errors():
                await take(aiter(stub.Watch(pb.WatchRequest(start_revision=start))), 1)
            with pytest.raises(RevisionCompacted), domain_errors():
                await take(aiter(stub.Watch(pb.WatchRequest(start_revision=10**6))), 1)
        following.cancel()
        await client.close()


ENGINE = engine_to_proto(engine())
BAD_ENGINE = engine_pb2.Engine(engine_id="e1", boot_nonce="n")
BAD_CALLS = [
    ("RegisterEngine", pb.RegisterEngineRequest(), "engine.role"),
    ("RegisterEngine", pb.RegisterEngineRequest(engine=BAD_ENGINE), "engine.role"),
    ("DeregisterEngine", pb.DeregisterEngineRequest(registration_id="?"), "registration_id"),
    ("PublishSessions", pb.PublishSessionsRequest(sessions=[session_pb2.Session()] * 129),
     "sessions"),
    ("WithdrawSessions", pb.WithdrawSessionsRequest(withdrawals=[pb.SessionWithdrawal()] * 129),
     "withdrawals"),
    ("ListEngines", pb.ListEnginesRequest(page_token="?"), "page_token"),
    ("ListSessions", pb.ListSessionsRequest(page_token="?"), "page_token"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "request_", "field"), BAD_CALLS)
async def test_bad_input_has_a_status_a_reason_and_a_field(
    directory: Address, method: str, request_: object, field: str
) -> None:
    async with grpc.aio.insecure_channel(str(directory)) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await getattr(DirectoryServiceStub(channel), method)(request_)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(ContraflowError) as domain, domain_errors():
            raise caught.value
    assert domain.value.reason == "INVALID_ARGUMENT"
    assert domain.value.metadata == {"field": field}


async def test_a_negative_revision_is_refused(directory: Address) -> None:
    async with grpc.aio.insecure_channel(str(directory)) as channel:
        call = DirectoryServiceStub(channel).Watch(pb.WatchRequest(start_revision=-1))
        with pytest.raises(ContraflowError) as caught, domain_errors():
            await anext(aiter(call))
    assert caught.value.metadata == {"field": "start_revision"}


async def test_reads(directory: Address, client: DirectoryClient, replica: FleetReplica) -> None:
    async with grpc.aio.insecure_channel(str(directory)) as channel:
        stub = DirectoryServiceStub(channel)
        with pytest.raises(NotFound), domain_errors():
            await stub.GetEngine(pb.GetEngineRequest(engine_id="none"))
        with pytest.raises(NotFound), domain_errors():
            await stub.GetSession(pb.GetSessionRequest(session_key=KEY))
        with pytest.raises(RegistrationNotFound), domain_errors():
            await stub.RenewEngine(pb.RenewEngineRequest(registration_id="12ab"))
        registration = (await client.register(engine("e2"), 60)).registration_id
        await client.register(engine("e1"), 60)
        await client.publish(registration, [session()])
        await until(lambda: KEY in replica.sessions, "all records")
        found = await stub.GetEngine(pb.GetEngineRequest(engine_id="e1"))
        assert found.engine == ENGINE
        one = await stub.ListEngines(pb.ListEnginesRequest(page_size=1))
        two = await stub.ListEngines(pb.ListEnginesRequest(page_token=one.next_page_token))
        assert [e.engine_id for e in (*one.engines, *two.engines)] == ["e1", "e2"]
        assert not two.next_page_token
        sessions = await stub.ListSessions(pb.ListSessionsRequest())
        assert [s.session_key for s in sessions.sessions] == [KEY]
        got = await stub.GetSession(pb.GetSessionRequest(session_key=KEY))
        assert got.session.handle_id == "h1"
