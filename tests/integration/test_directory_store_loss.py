"""The directory while its etcd is away, comes back, or comes back empty."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.support.running_directory import on_etcd, running_directory, until_healthy
from tests.support.wait import until

from contraflow.core.errors import RegistrationNotFound, StoreUnavailable
from contraflow.core.fleet import Engine, Role, Session
from contraflow.runtime.address import Address
from contraflow.runtime.clock import SystemClock
from contraflow.runtime.directory_client import DirectoryClient, Registration
from contraflow.runtime.fleet_replica import FleetReplica
from contraflow.store.etcd_binary import EtcdProcess
from contraflow.v1 import directory_service_pb2 as pb
from contraflow.v1.directory_service_pb2_grpc import DirectoryServiceStub

pytestmark = pytest.mark.integration

CLOCK = SystemClock()
KEY = "0123456789abcdef" * 2
ENGINE = Engine(
    "e1", "n1", Role.DECODE, "http://127.0.0.1:1", agent_address="127.0.0.1:2", block_size=16
)


def session(handle: str) -> Session:
    return Session(KEY, "e1", "127.0.0.1:2", handle, 100, CLOCK.now() + 60, CLOCK.now())


@dataclass
class Fleet:
    etcd: EtcdProcess
    folder: Path
    directory: Address
    client: DirectoryClient
    replica: FleetReplica
    registration: Registration

    def restart_etcd(self, folder: str = "etcd") -> None:
        self.etcd = EtcdProcess.start(
            self.folder / folder, client_port=self.etcd.address.port, fsync=False
        )


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    """One engine with one session, known to a follower."""
    etcd = EtcdProcess.start(tmp_path / "etcd", fsync=False)
    async with running_directory(on_etcd(etcd, "test")) as address:
        client = DirectoryClient([address], CLOCK, call_timeout=5.0)
        replica = FleetReplica(CLOCK)
        following = asyncio.create_task(client.follow(replica))
        await until(replica.synced.is_set, "the first snapshot")
        registration = await client.register(ENGINE, 60)
        await client.publish(registration.registration_id, [session("h1")])
        await until(lambda: KEY in replica.sessions, "the session")
        fleet = Fleet(etcd, tmp_path, address, client, replica, registration)
        yield fleet
        following.cancel()
        await client.close()
    fleet.etcd.kill()


async def test_reads_go_on_and_writes_say_so_until_etcd_is_back(fleet: Fleet) -> None:
    fleet.etcd.stop()
    with pytest.raises(StoreUnavailable):
        await fleet.client.register(ENGINE, 60)
    with pytest.raises(StoreUnavailable):
        await fleet.client.renew(fleet.registration.registration_id)
    with pytest.raises(StoreUnavailable):
        await fleet.client.publish(fleet.registration.registration_id, [session("h2")])
    async with grpc.aio.insecure_channel(str(fleet.directory)) as channel:
        got = await DirectoryServiceStub(channel).GetSession(pb.GetSessionRequest(session_key=KEY))
    assert got.session.handle_id == "h1"
    newcomer = FleetReplica(CLOCK)
    following = asyncio.create_task(fleet.client.follow(newcomer))
    await until(lambda: KEY in newcomer.sessions, "a snapshot of the last content")
    fleet.restart_etcd()
    await write_when_back(fleet, "h2")
    await until(lambda: newcomer.sessions[KEY].handle_id == "h2", "news for a newcomer")
    await until(lambda: fleet.replica.sessions[KEY].handle_id == "h2", "news for the follower")
    assert fleet.replica.engines == {"e1": ENGINE}
    following.cancel()


async def write_when_back(fleet: Fleet, handle: str) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                outcomes = await fleet.client.publish(
                    fleet.registration.registration_id, [session(handle)]
                )
            except StoreUnavailable:
                await asyncio.sleep(0.1)
            else:
                assert outcomes == [None]
                return


async def test_an_etcd_that_lost_everything_is_followed_from_its_start(fleet: Fleet) -> None:
    fleet.etcd.kill()
    fleet.restart_etcd("emptied")
    await until(lambda: not fleet.replica.engines, "the engine that etcd has forgotten is gone")
    assert not fleet.replica.sessions
    with pytest.raises(RegistrationNotFound):
        await fleet.client.renew(fleet.registration.registration_id)
    await fleet.client.register(ENGINE, 60)
    await until(lambda: fleet.replica.engines == {"e1": ENGINE}, "the engine, registered anew")


async def test_without_a_first_content_nothing_is_claimed(tmp_path: Path) -> None:
    etcd = EtcdProcess.start(tmp_path / "etcd", fsync=False)
    etcd.kill()
    async with (
        running_directory(on_etcd(etcd, "test")) as address,
        grpc.aio.insecure_channel(str(address)) as channel,
    ):
        stub = DirectoryServiceStub(channel)
        health: Any = health_pb2_grpc.HealthStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ListEngines(pb.ListEnginesRequest())
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        status = await health.Check(health_pb2.HealthCheckRequest())
        assert status.status == health_pb2.HealthCheckResponse.NOT_SERVING
        etcd = EtcdProcess.start(tmp_path / "etcd", client_port=etcd.address.port, fsync=False)
        await until_healthy(address)
        assert not (await stub.ListEngines(pb.ListEnginesRequest())).engines
    etcd.kill()
