"""The reader's side of the fabric: one read from handshake to notification."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from contraflow.runtime.clock import Clock
from contraflow.sim.api import SimCounters
from contraflow.sim.fabric import Connection, Fabric, FabricError
from contraflow.sim.options import SimOptions
from contraflow.sim.pool import Content
from contraflow.sim.transfer import Pull, lease_of, remote_address, remote_ids
from contraflow_connector.holds import Heartbeats, ends_late

log = logging.getLogger(__name__)

EXPIRY_MARGIN_SECONDS = 5.0
"""vLLM declines a read that would start less than this before the expiry handed out."""


@dataclass(frozen=True, slots=True)
class Landing:
    """How a read ended. Bytes and seconds count also if it came too late."""

    pull: Pull
    ok: bool
    moved: int = 0
    blocks: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Ahead:
    """How far the owner's clock is ahead of the reader's, give or take ``error``; seconds."""

    offset: float
    error: float


class Puller:
    """Reads for one engine. Nothing it does raises."""

    def __init__(
        self,
        options: SimOptions,
        fabric: Fabric,
        clock: Clock,
        counters: SimCounters,
        heartbeats: Heartbeats,
    ) -> None:
        self._heartbeats = heartbeats
        self._options = options
        self._fabric = fabric
        self._clock = clock
        self._counters = counters

    async def run(self, pull: Pull) -> Landing:
        """Read the remote blocks into the local ones, as they are when the time is over."""
        try:
            connection, ahead = await self._shake_hands(pull)
            try:
                return await self._read(pull, connection, ahead)
            finally:
                await connection.close()
        except FabricError as error:
            log.warning("the read for %s failed: %s", pull.seq.request_id, error)
            self._counters.nixl_failed_transfers += 1
            return Landing(pull, ok=False)

    async def _shake_hands(self, pull: Pull) -> tuple[Connection, Ahead]:
        before = self._clock.now()
        connection = await self._fabric.connect(*remote_address(pull.params))
        after = self._clock.now()
        ahead = Ahead(connection.hello.now - (before + after) / 2, (after - before) / 2)
        if fault := self._fault(pull, connection):
            await connection.close()
            raise FabricError(fault)
        return connection, ahead

    def _fault(self, pull: Pull, connection: Connection) -> str:
        hello = connection.hello
        if hello.engine_id != pull.params["remote_engine_id"]:
            return "another engine listens there"
        if hello.compatibility_class != self._options.compatibility_class:
            return "the engines can not exchange blocks"
        generation = pull.params.get("remote_registration_generation") or 0
        if generation not in (0, hello.registration_generation):
            return "the owner has registered its memory again"
        return ""

    async def _read(self, pull: Pull, connection: Connection, ahead: Ahead) -> Landing:
        request_id = str(pull.params["remote_request_id"])
        if not pull.local_blocks:
            await connection.notify(request_id)
            return Landing(pull, ok=True)
        started = self._clock.now()
        expiry = pull.params.get("remote_blocks_expiry_time")
        if (
            self._options.bidirectional
            and isinstance(expiry, int | float)
            and started + ahead.offset + EXPIRY_MARGIN_SECONDS >= expiry
        ):
            log.warning("declining the expired read for %s", pull.seq.request_id)
            self._counters.nixl_expired_requests += 1
            return Landing(pull, ok=False)
        remote = remote_ids(pull.params)
        # vLLM aligns the lists at their ends.
        count = min(len(remote), len(pull.local_blocks))
        costs = self._options.costs
        moved = count * self._options.block_size * costs.bytes_per_token
        await self._clock.sleep(costs.pull(moved))
        contents = await connection.read(remote[len(remote) - count :])
        for block, got in zip(pull.local_blocks[-count:], contents, strict=True):
            block.content = Content(got.seed, list(got.tokens))
        await connection.notify(request_id)
        ended = self._clock.now()
        self._counters.nixl_bytes += moved
        self._counters.nixl_descriptors += count
        self._counters.nixl_transfers.append(ended - started)
        late = self._ended_late(pull, ended, ahead)
        if late:
            log.warning("the read for %s ended after its hold", pull.seq.request_id)
        return Landing(pull, not late, moved, count, ended - started)

    def _ended_late(self, pull: Pull, ended: float, ahead: Ahead) -> bool:
        if pull.hold is None:
            return False
        offset, error = ahead.offset, ahead.error
        until = self._heartbeats.prolong(pull.hold, lease_of(pull.params), offset, error)
        return ends_late(ended + offset + error, until)
