"""Publishes KV events over ZMQ, byte for byte as vLLM's publisher does.

A message has three frames: topic, sequence number (8 bytes, big-endian), and a batch in
msgpack. A REQ socket may ask the replay endpoint for all from a sequence number on; the answer
ends with the number -1.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
import zmq
import zmq.asyncio

from contraflow.sim import kv_events
from contraflow.sim.kv_events import KvEvent

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
_MEDIUM = "GPU"
_KIND = "full_attention"
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class KvEventsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The object of ``--kv-events-config``. Ports of endpoints count up with the rank."""

    enable_kv_cache_events: bool = False
    publisher: Literal["zmq", "null"] = "zmq"
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: _Count = 10_000
    hwm: _Count = 100_000
    max_queue_size: _Count = 100_000
    topic: str = ""

    @property
    def publishes(self) -> bool:
        """Whether there is anything to publish to."""
        return self.enable_kv_cache_events and self.publisher != "null"


class _Event(msgspec.Struct, omit_defaults=True, tag=True):
    pass


class BlockStored(_Event):
    """As vLLM sends it; of its optional fields those that a sim engine has."""

    block_hashes: list[bytes]
    parent_block_hash: bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: None
    medium: str
    lora_name: None
    extra_keys: list[tuple[str, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    session_id: str | None = None


class BlockRemoved(_Event):
    """As vLLM sends it."""

    block_hashes: list[bytes]
    medium: str
    group_idx: int | None = None


class AllBlocksCleared(_Event):
    """As vLLM sends it."""


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    """Events of one step. ``ts`` is Unix time."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


def to_vllm(event: KvEvent) -> BlockStored | BlockRemoved | AllBlocksCleared:
    """An engine's event in vLLM's shape."""
    if isinstance(event, kv_events.BlockRemoved):
        return BlockRemoved(event.block_hashes, _MEDIUM, group_idx=0)
    if isinstance(event, kv_events.AllBlocksCleared):
        return AllBlocksCleared()
    salted = event.cache_salt and event.parent_block_hash is None
    others = len(event.block_hashes) - 1
    return BlockStored(
        block_hashes=event.block_hashes,
        parent_block_hash=event.parent_block_hash,
        token_ids=event.token_ids,
        block_size=event.block_size,
        lora_id=None,
        medium=_MEDIUM,
        lora_name=None,
        # A salt is part of a chain's first hash only.
        extra_keys=[(event.cache_salt,), *[None] * others] if salted else None,
        group_idx=0,
        kv_cache_spec_kind=_KIND,
        session_id=event.session_id or None,
    )


def with_rank(endpoint: str, rank: int) -> str:
    """The endpoint of a data-parallel rank. Raises ValueError if it is none of ZMQ's."""
    if endpoint.startswith("inproc://"):
        return f"{endpoint}_dp{rank}" if rank else endpoint
    if endpoint.startswith("tcp://"):
        host, _, port = endpoint.rpartition(":")
        # ZMQ would take the port modulo 2**16.
        if port.isdecimal() and int(port) + rank < 2**16:
            return f"{host}:{int(port) + rank if int(port) else 0}"
    raise ValueError(
        f"{endpoint!r} is not 'tcp://host:port', with a port for each rank, or 'inproc://name'"
    )


class KvEventPublisher:
    """The sockets of one rank. Raises OSError, naming the endpoint, if one can not be bound.

    Events of one turn of the event loop go out as one batch.
    """

    def __init__(
        self, config: KvEventsConfig, rank: int = 0, clock: Callable[[], float] = time.time
    ) -> None:
        self._rank = rank
        self._clock = clock
        self._topic = config.topic.encode()
        self._encode = msgspec.msgpack.Encoder().encode
        self._pending: list[KvEvent] = []
        self._sequence = 0
        self._sent: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._context: zmq.Context[Any] = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._pub.set_hwm(config.hwm)
        self._replay: Any = zmq.asyncio.Socket(self._context, zmq.ROUTER)
        self._replays: asyncio.Task[None] | None = None
        try:
            self.endpoint = _open(self._pub, with_rank(config.endpoint, rank))
            self.replay_endpoint = ""
            if config.replay_endpoint:
                endpoint = with_rank(config.replay_endpoint, rank)
                self.replay_endpoint = _bind(self._replay, endpoint)
                self._replays = asyncio.ensure_future(self._serve_replays())
        except BaseException:
            self._close_sockets()
            raise

    def publish(self, event: KvEvent) -> None:
        """Send soon. What a subscriber is too slow for is dropped."""
        if not self._pending:
            asyncio.get_running_loop().call_soon(self._flush)
        self._pending.append(event)

    async def close(self) -> None:
        """Send what is pending, and close all sockets."""
        self._flush()
        if self._replays is not None:
            self._replays.cancel()
            await asyncio.gather(self._replays, return_exceptions=True)
        self._close_sockets()

    def _close_sockets(self) -> None:
        self._replay.close(linger=0)
        self._pub.close(linger=100)
        self._context.term()

    def _flush(self) -> None:
        events, self._pending = self._pending, []
        if not events or self._pub.closed:
            return
        batch = KVEventBatch(self._clock(), [to_vllm(event) for event in events], self._rank)
        payload = self._encode(batch)
        self._pub.send_multipart((self._topic, _number(self._sequence), payload))
        self._sent.append((self._sequence, payload))
        self._sequence += 1

    async def _serve_replays(self) -> None:
        while True:
            frames = await self._replay.recv_multipart()
            if len(frames) != 3:
                continue
            client, _, start = frames
            for sequence, payload in list(self._sent):
                if sequence >= int.from_bytes(start, "big"):
                    answer = (client, b"", self._topic, _number(sequence), payload)
                    await self._replay.send_multipart(answer)
            await self._replay.send_multipart((client, b"", b"", END_OF_REPLAY, b""))


def _number(sequence: int) -> bytes:
    return sequence.to_bytes(8, "big")


def _open(socket: Any, endpoint: str) -> str:
    """Bind a wildcard; connect to a host, whose subscriber then binds: as vLLM does."""
    if "*" in endpoint or "::" in endpoint or endpoint.startswith("inproc://"):
        return _bind(socket, endpoint)
    socket.connect(endpoint)
    return endpoint


def _bind(socket: Any, endpoint: str) -> str:
    if "[" in endpoint:
        socket.setsockopt(zmq.IPV6, 1)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise OSError(f"cannot bind {endpoint}: {error.strerror}") from error
    bound: bytes = socket.getsockopt(zmq.LAST_ENDPOINT)
    return bound.rstrip(b"\0").decode()
