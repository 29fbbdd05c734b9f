"""KV events as a subscriber of vLLM's decodes them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from contraflow.sim.events_zmq import (
    END_OF_REPLAY,
    KvEventPublisher,
    KvEventsConfig,
    to_vllm,
    with_rank,
)
from contraflow.sim.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent

STORED = BlockStored([b"h1", b"h2"], None, [1, 2, 3, 4], 2, cache_salt="s", session_id="chat-1")
DEADLINE_SECONDS = 10.0


class _Event(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    """The part of vLLM's definitions that these tests need, field by field."""


class Stored(_Event, tag="BlockStored"):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class Removed(_Event, tag="BlockRemoved"):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None


class Cleared(_Event, tag="AllBlocksCleared"):
    pass


class Batch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Stored | Removed | Cleared]
    data_parallel_rank: int | None = None


def over_the_wire(event: KvEvent) -> Stored | Removed | Cleared:
    data = msgspec.msgpack.encode(to_vllm(event))
    return msgspec.msgpack.decode(data, type=Stored | Removed | Cleared)


def test_a_stored_block_says_where_it_hangs_and_who_asked() -> None:
    assert over_the_wire(STORED) == Stored(
        [b"h1", b"h2"], None, [1, 2, 3, 4], 2, None, "GPU", None, [("s",), None], 0,
        "full_attention", session_id="chat-1",
    )  # fmt: skip


def test_only_the_first_block_of_a_chain_carries_the_salt() -> None:
    later = over_the_wire(BlockStored([b"h3"], b"h2", [5, 6], 2, cache_salt="s"))
    assert isinstance(later, Stored)
    assert (later.parent_block_hash, later.extra_keys, later.session_id) == (b"h2", None, None)


def test_removed_and_cleared_blocks() -> None:
    assert over_the_wire(BlockRemoved([b"h1"])) == Removed([b"h1"], "GPU", 0)
    assert over_the_wire(AllBlocksCleared()) == Cleared()


@pytest.mark.parametrize(
    ("endpoint", "rank", "expected"),
    [
        ("tcp://*:5557", 0, "tcp://*:5557"),
        ("tcp://127.0.0.1:5557", 2, "tcp://127.0.0.1:5559"),
        ("tcp://*:0", 1, "tcp://*:0"),
        ("inproc://cache", 0, "inproc://cache"),
        ("inproc://cache", 1, "inproc://cache_dp1"),
    ],
)
def test_each_rank_has_an_endpoint_of_its_own(endpoint: str, rank: int, expected: str) -> None:
    assert with_rank(endpoint, rank) == expected


@pytest.mark.parametrize(
    "endpoint", ["localhost:5557", "tcp://localhost", "udp://a:1", "tcp://*:65535"]
)
def test_an_endpoint_that_is_none_is_named(endpoint: str) -> None:
    with pytest.raises(ValueError, match="is not 'tcp://host:port'"):
        with_rank(endpoint, 1)


def config(**fields: Any) -> KvEventsConfig:
    replay = "tcp://127.0.0.1:0"
    given = {"endpoint": "tcp://*:0", "replay_endpoint": replay, **fields}
    return KvEventsConfig(enable_kv_cache_events=True, **given)


def test_a_config_that_is_off_or_null_publishes_nothing() -> None:
    assert config().publishes
    assert not config(publisher="null").publishes
    assert not KvEventsConfig().publishes


async def replayed(publisher: KvEventPublisher, start: int) -> list[list[bytes]]:
    """Topic, number and payload of every message that the replay endpoint gives."""
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.DEALER)
    try:
        socket.connect(publisher.replay_endpoint)
        await socket.send_multipart((b"", start.to_bytes(8, "big")))
        found: list[list[bytes]] = []
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not found or found[-1][1] != END_OF_REPLAY:
                found.append((await socket.recv_multipart())[1:])
        return found
    finally:
        context.destroy(linger=0)


async def test_events_of_one_turn_are_one_batch_and_numbers_count_up() -> None:
    publisher = KvEventPublisher(config(topic="kv"), 3, clock=lambda: 12.5)
    try:
        publisher.publish(STORED)
        publisher.publish(BlockRemoved([b"h1"]))
        await asyncio.sleep(0)
        publisher.publish(AllBlocksCleared())
        await asyncio.sleep(0)
        first, second, _ = await replayed(publisher, 0)
        assert [first[:2], second[:2]] == [
            [b"kv", (0).to_bytes(8, "big")],
            [b"kv", (1).to_bytes(8, "big")],
        ]
        batch = msgspec.msgpack.decode(first[2], type=Batch)
        assert (batch.ts, batch.data_parallel_rank) == (12.5, 3)
        assert [type(event) for event in batch.events] == [Stored, Removed]
        assert [message[1] for message in await replayed(publisher, 1)] == [
            (1).to_bytes(8, "big"),
            END_OF_REPLAY,
        ]
    finally:
        await publisher.close()


async def test_a_subscriber_that_binds_gets_what_the_publisher_connects_to() -> None:
    """As vLLM has it: a wildcard is bound, a host is connected to."""
    context = zmq.asyncio.Context()
    subscriber = context.socket(zmq.SUB)
    subscriber.subscribe(b"kv")
    port = subscriber.bind_to_random_port("tcp://127.0.0.1")
    publisher = KvEventPublisher(config(endpoint=f"tcp://127.0.0.1:{port}", topic="kv"))
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:  # what is sent before the subscription has arrived is lost
                publisher.publish(STORED)
                if await subscriber.poll(50):
                    break
            topic, number, payload = await subscriber.recv_multipart()
        assert (topic, len(number)) == (b"kv", 8)
        assert len(msgspec.msgpack.decode(payload, type=Batch).events) == 1
    finally:
        await publisher.close()
        context.destroy(linger=0)


async def test_an_endpoint_that_is_taken_is_named() -> None:
    publisher = KvEventPublisher(config())
    try:
        with pytest.raises(OSError, match=r"cannot bind tcp://127\.0\.0\.1:"):
            KvEventPublisher(config(replay_endpoint=publisher.replay_endpoint))
    finally:
        await publisher.close()
