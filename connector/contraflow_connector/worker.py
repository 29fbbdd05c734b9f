"""The worker half: frees and renews on command, tells reads from expiries, fails reads that
end late, either way."""

from __future__ import annotations

import time
from typing import Any

from contraflow.core.handle import State
from contraflow_connector.events import Transfer, WorkerEvents
from contraflow_connector.guard import guarded, log
from contraflow_connector.holds import Heartbeats, Hold, ends_late
from contraflow_connector.vllm_compat import (
    NixlConnectorMetadata,
    NixlPullConnectorWorker,
    agents_of,
    clock_offset,
    heartbeats_of,
    holds_of,
    lease_of,
    noting_notifications,
    on_worker_clock,
    releases_of,
    renewals_of,
    transfer_totals,
)

_MOST_HOLDS = 4096
_LAST_CALL = 1.0
"""Seconds that a lease is kept once it is seen to have run out. A worker that was stalled finds
it so at once, and what its reader sent meanwhile a moment later."""


class ContraflowWorker(NixlPullConnectorWorker):
    """vLLM's pull worker, whose ends and transfers are reported one by one."""

    _reqs_to_send: dict[str, float]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._released: set[str] = set()
        self._events = WorkerEvents()
        self._holds: dict[str, Hold] = {}
        self._heartbeats = Heartbeats()
        self._clock_errors: dict[str, float] = {}  # engine id -> seconds
        self._overdue: dict[str, float] = {}  # request id -> since when its lease is seen to be

    def take_events(self) -> WorkerEvents | None:
        """What has happened since the last call; None if nothing."""
        if not self._events:
            return None
        events, self._events = self._events, WorkerEvents()
        return events

    def start_load_kv(self, metadata: NixlConnectorMetadata) -> None:
        # A request whose read never came to a transfer leaves its entry: bound them.
        while len(self._holds) > _MOST_HOLDS:
            del self._holds[next(iter(self._holds))]
        self._holds.update(holds_of(metadata))
        super().start_load_kv(metadata)
        # After super(): a release in the very step that hands over the deadline must win.
        self._release(releases_of(metadata))
        self._renew(metadata)

    @guarded(None)
    def _release(self, request_ids: tuple[str, ...]) -> None:
        for request_id in request_ids:
            # An id that the worker does not hold was read or reaped in the meantime.
            if self._reqs_to_send.pop(request_id, None) is None:
                continue
            self._reqs_to_process.discard(request_id)
            # Some of several readers may have told that they are done, and no others will.
            self.consumer_notification_counts_by_req.pop(request_id, None)
            self.expected_consumer_notifications_by_req.pop(request_id, None)
            self._released.add(request_id)
            self._events.ends.append((request_id, State.RELEASED))

    @guarded(None)
    def _renew(self, metadata: NixlConnectorMetadata) -> None:
        now = time.perf_counter()
        for request_id, deadline in renewals_of(metadata).items():
            # Only what is still held: blocks that were let go may belong to another request.
            if (held := self._reqs_to_send.get(request_id)) is not None:
                renewed = on_worker_clock(metadata, deadline, now)
                self._reqs_to_send[request_id] = max(held, renewed)
                self._events.renewed.append((request_id, deadline))

    def _reap_expired_send_leases(self, done_sending: set[str]) -> None:
        done_sending |= self._released
        self._released = set()
        before = set(done_sending)
        # vLLM frees whatever it sees to have run out: let it see those only that may go.
        held = self._reqs_to_send
        self._reqs_to_send = {request_id: held.pop(request_id) for request_id in self._ripe()}
        try:
            super()._reap_expired_send_leases(done_sending)
        finally:
            self._reqs_to_send = held
        expired = sorted(done_sending - before)
        self._events.ends.extend((request_id, State.EXPIRED) for request_id in expired)

    def _ripe(self) -> list[str]:
        now = time.perf_counter()
        self._overdue = {
            request_id: self._overdue.get(request_id, now)
            for request_id, deadline in self._reqs_to_send.items()
            if deadline <= now
        }
        return [one for one, since in self._overdue.items() if now - since >= _LAST_CALL]

    def _nixl_handshake(
        self, host: str, port: int, remote_tp_size: int, expected_engine_id: str,
        *args: Any, **kwargs: Any,
    ) -> Any:  # fmt: skip
        # vLLM takes the middle of a round trip for the instant of the answer. However uneven the
        # ways there and back are, that is off by half of it at most.
        began = time.perf_counter()
        result = super()._nixl_handshake(
            host, port, remote_tp_size, expected_engine_id, *args, **kwargs
        )
        self._clock_errors[expected_engine_id] = (time.perf_counter() - began) / 2
        return result

    def _send_heartbeats(self, metadata: NixlConnectorMetadata) -> None:
        now = time.perf_counter()
        with noting_notifications(self) as told:
            super()._send_heartbeats(metadata)
        self._note_heartbeats(metadata, told, now)

    @guarded(None)
    def _note_heartbeats(self, metadata: NixlConnectorMetadata, told: set[str], now: float) -> None:
        # Nothing is due, or nobody waits any more: those that wait are named with the next.
        if not (waiting := heartbeats_of(metadata)):
            return
        self._heartbeats.keep(set().union(*waiting.values()))
        for engine_id, leases in waiting.items():
            if (agents := agents_of(self, engine_id)) and agents <= told:
                self._heartbeats.sent(leases, now)

    def _get_new_notifs(self) -> set[str]:
        notified: set[str] = super()._get_new_notifs()
        self._events.ends.extend((request_id, State.READ) for request_id in sorted(notified))
        return notified

    def _pop_done_transfers(self, transfers: dict[str, list[int]]) -> tuple[set[str], set[str]]:
        done: set[str] = set()
        failed: set[str] = set()
        # One request at a time, so that what the telemetry adds belongs to it.
        for request_id in list(transfers):
            one = {request_id: transfers[request_id]}
            before = transfer_totals(self)
            one_done, one_failed = super()._pop_done_transfers(one)
            if request_id in one:
                transfers[request_id] = one[request_id]
            else:
                del transfers[request_id]
            if one_done and not one_failed and self._too_late(request_id):
                one_failed = one_done
            done |= one_done
            failed |= one_failed
            self._note_transfer(request_id, before)
        return done, failed

    @guarded(True)
    def _too_late(self, request_id: str) -> bool:
        hold = self._holds.pop(request_id, None)
        if hold is None:
            return False
        lease = lease_of(self, request_id)
        offset = clock_offset(self, lease[0])
        error = self._clock_errors[lease[0]]
        until = self._heartbeats.prolong(hold, lease, offset, error)
        late = ends_late(time.perf_counter() + offset + error, until)
        if late:
            # Its owner may have given the blocks to somebody else while we read.
            log.warning("the read for %s ended after its hold; it counts as failed", request_id)
        return late

    @guarded(None)
    def _note_transfer(self, request_id: str, before: tuple[int, int, float]) -> None:
        after = transfer_totals(self)
        moved, descriptors = after[0] - before[0], after[1] - before[1]
        if moved or descriptors:
            took = after[2] - before[2]
            self._events.transfers.append(Transfer(request_id, moved, descriptors, took))
            log.debug("pulled %d bytes for %s in %.4f s", moved, request_id, took)
