"""What one turn sent to engines, and whether it may fail with that: the table of failures in
ARCHITECTURE.md once more, written from the outside."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from contraflow.core.fleet import Engine, Role

_SAID = re.compile(rb'"token_ids":\[\d')
_ERROR = b'data: {"error"'
_ABORT = b'"finish_reason":"abort"'
_MOST = 4  # each role: the first try, elsewhere, without blocks, on a fresh connection


class Fate(StrEnum):
    """What became of a leg, as far as the router can know."""

    WELL = "WELL"
    REFUSED = "REFUSED"
    """No connection: not a byte has left."""
    BROKEN = "BROKEN"
    SILENT = "SILENT"
    """For longer than the router waits."""
    FAILED = "FAILED"
    """The engine says so."""
    ABORTED = "ABORTED"
    """The engine is being stopped."""


_NOT_TAKEN = (Fate.REFUSED, Fate.ABORTED)


class Params(msgspec.Struct):
    """As much of transfer parameters as tells whether blocks are offered, and which."""

    remote_engine_id: str | None = None
    remote_request_id: str | None = None


class _Body(msgspec.Struct):
    kv_transfer_params: Params | None = None
    stream: bool | None = None


@dataclass(slots=True)
class Leg:
    """One exchange. ``reused``: on a connection that had served before; ``elsewhere``: other
    endpoints of the role that the router knew to serve."""

    role: Role
    blocks: tuple[str, str] | None
    reused: bool
    elsewhere: int
    streamed: bool
    sent: bool = False
    started: bool = False
    said: bool = False
    fate: Fate = Fate.BROKEN

    @property
    def stale(self) -> bool:
        """It may have been sent on a connection that had died idle."""
        return self.fate is Fate.BROKEN and self.reused and not self.started

    def read(self, piece: bytes) -> None:
        """Some of the answer has reached the router."""
        self.said = self.said or _SAID.search(piece) is not None
        if _ERROR in piece:
            self.fate = Fate.FAILED
        elif _ABORT in piece:
            self.fate = Fate.ABORTED

    def ended(self, status: int) -> None:
        """The answer came to its end."""
        if self.fate is Fate.BROKEN:
            self.fate = Fate.WELL if status < 500 else Fate.FAILED


@dataclass(slots=True)
class Trace:
    """The legs of one turn, in order. ``known``: the engines that its router knows of."""

    known: Callable[[], Iterable[Engine]]
    legs: list[Leg] = field(default_factory=list)
    at_first: dict[Role, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.at_first = {role: self._endpoints(role) for role in Role}

    def begin(self, role: Role, origin: str, body: bytes, *, reused: bool) -> Leg:
        """One more leg is about to be sent."""
        told = msgspec.json.decode(body, type=_Body)
        params, blocks = told.kv_transfer_params, None
        if params and params.remote_engine_id and params.remote_request_id:
            blocks = (params.remote_engine_id, params.remote_request_id)
        others = (self.at_first[role] & self._endpoints(role)) - {origin}
        leg = Leg(role, blocks, reused, len(others), bool(told.stream))
        self.legs.append(leg)
        return leg

    def wrong(self) -> Iterator[str]:
        """What should not have been sent, however the turn ended."""
        for role, count in Counter(leg.role for leg in self.legs).items():
            if count > _MOST:
                yield f"{count} legs of {role}"
        offered = Counter(leg.blocks for leg in self.legs if leg.sent and leg.blocks)
        yield from (f"{blocks} went out again" for blocks, count in offered.items() if count > 1)
        if any(leg.said and leg.role is Role.DECODE for leg in self.legs[:-1]):
            yield "a leg was sent after the answer had begun"

    def may_fail(self) -> bool:
        """Whether a turn may fail whose legs were these. It had some."""
        last = self.legs[-1]
        before = [leg for leg in self.legs[:-1] if leg.role is last.role]
        if last.fate is Fate.WELL:
            return False
        if last.fate in _NOT_TAKEN and last.role is Role.PREFILL:
            return False  # decode can do without
        if last.said and last.role is Role.DECODE:
            return True
        if last.fate in _NOT_TAKEN:
            return not last.elsewhere or any(leg.fate in _NOT_TAKEN for leg in before)
        if last.fate is Fate.SILENT:
            return True
        if last.blocks:
            whole = last.role is Role.DECODE and not last.streamed
            return whole and last.started and last.fate is Fate.BROKEN
        return not last.stale or any(leg.stale and not leg.blocks for leg in before)

    def _endpoints(self, role: Role) -> set[str]:
        return {one.endpoint for one in self.known() if one.role is role and not one.draining}


TRACE: ContextVar[Trace | None] = ContextVar("trace", default=None)
