"""Takes transfer parameters out of a server-sent event stream and passes the rest as it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from contraflow.web.json_splice import (
    TRANSFER_KEY,
    TRANSFER_NEEDLE,
    remove_key,
    transfer_dict,
)

MAX_EVENT_BYTES = 16 * 1024 * 1024
_DATA = b"data:"
_ENDS = (b"\n\n", b"\n\r\n")
_END = re.compile(rb"\n\r?\n")


class SseEventTooLarge(Exception):
    """An event is longer than the filter holds back; the stream cannot be checked any more."""


class SseFilter:
    """Feed it the stream in any pieces; it returns what the client may see.

    Complete events come out at once, as the very bytes object that was fed where it ends with an
    event. An event that is cut by a read is held back until its end. Only an event that holds the
    text `"kv_transfer_params"` is parsed, and it is changed only if that is a top-level key of
    its JSON. Events end with an empty line; line ends are LF or CRLF.
    """

    __slots__ = ("_edge", "_held", "_limit", "_size", "raw_transfer_params", "removed")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._held: list[bytes] = []
        self._size = 0
        self._edge = b""
        self._limit = max_event_bytes
        self.raw_transfer_params: bytes | None = None
        self.removed = 0

    @property
    def transfer_params(self) -> dict[str, Any] | None:
        """The newest parameters seen that are not null; None if there were none."""
        return transfer_dict(self.raw_transfer_params)

    @property
    def held(self) -> int:
        """Bytes held back: the beginning of an event whose end has not come."""
        return self._size

    def feed(self, data: bytes) -> bytes:
        """Take a piece of the stream; b"" if no event ends in it. Raises SseEventTooLarge."""
        if not self._held and data.endswith(_ENDS):
            return self._clean(data)
        end = _last_end(data) or self._end_at_edge(data)
        if not end:
            self._hold(data)
            return b""
        self._held.append(data[:end])
        events = b"".join(self._held)
        self._held.clear()
        self._size = 0
        self._edge = b""
        if end < len(data):
            self._hold(data[end:])
        return self._clean(events)

    def finish(self) -> bytes:
        """The stream has ended: what was held back, as it is."""
        rest = b"".join(self._held)
        self._held.clear()
        self._size = 0
        self._edge = b""
        return rest

    def _end_at_edge(self, data: bytes) -> int:
        """Where the separator ends in `data` that begins in what is held; 0 if there is none."""
        return max(0, _last_end(self._edge + data[:2]) - len(self._edge))

    def _hold(self, data: bytes) -> None:
        if data:
            self._held.append(data)
            self._size += len(data)
            self._edge = (self._edge + data[-2:])[-2:]
            if self._size > self._limit:
                raise SseEventTooLarge(f"an event is longer than {self._limit} bytes")

    def _clean(self, events: bytes) -> bytes:
        """Complete events, without transfer parameters."""
        if TRANSFER_NEEDLE not in events:
            return events
        out: list[bytes] = []
        done = 0
        for start, end in _holders(events):
            event = events[start:end]
            cleaned = self._clean_event(event)
            if cleaned is not event:
                out += (events[done:start], cleaned)
                done = end
        if not done:
            return events
        out.append(events[done:])
        return b"".join(out)

    def _clean_event(self, event: bytes) -> bytes:
        lines = event.splitlines(keepends=True)
        data = [line for line in lines if line.startswith(_DATA)]
        payload = b"\n".join([line[len(_DATA) :].strip(b" \r\n") for line in data])
        cleaned, raw = remove_key(payload, TRANSFER_KEY)
        if raw is None:
            return event
        if raw != b"null":  # vLLM 0.33 writes null on every chunk but the one that counts
            self.raw_transfer_params = raw
        self.removed += 1
        end = b"\r\n" if event.endswith(b"\r\n") else b"\n"
        first = lines.index(data[0])
        others = [line for line in lines[first + 1 :] if not line.startswith(_DATA)]
        return b"".join([*lines[:first], _DATA, b" ", cleaned, end, *others])


def _last_end(data: bytes) -> int:
    """Where the last separator ends; 0 if there is none."""
    return max(at + len(end) if (at := data.rfind(end)) >= 0 else 0 for end in _ENDS)


def _holders(events: bytes) -> Iterator[tuple[int, int]]:
    """Where the events lie that hold the needle."""
    start = 0
    at = events.find(TRANSFER_NEEDLE)
    while at >= 0:
        start = max(start, _last_end(events[start:at]) + start)
        found = _END.search(events, at)
        end = found.end() if found else len(events)
        yield start, end
        start = end
        at = events.find(TRANSFER_NEEDLE, end)
