"""Which handle a turn has made useless that it did not read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


class Retained(Protocol):
    """What is looked at of a handle; ``contraflow.v1.Handle`` is one."""

    @property
    def handle_id(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def turn_id(self) -> str: ...
    @property
    def message_digest(self) -> str: ...
    @property
    def claim_id(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Before:
    """What tells the handle that a turn went on from: the turn that left it, the handle itself,
    or digests of the turn's messages up to a reply, the latest first. The first that is set
    counts."""

    turn_id: str = ""
    handle_id: str = ""
    message_digests: tuple[str, ...] = ()


def outlived(handles: Iterable[Retained], tenant: str, turn_id: str, before: Before) -> str:
    """The handle that ``turn_id`` went on from, among those under the key of the turn before;
    empty if none is surely it, or if another turn has claimed it.

    By digests it is the only one with the latest that any handle has: of two, one may be
    another branch's.
    """
    others = [one for one in handles if one.tenant == tenant and one.turn_id != turn_id]
    if before.turn_id:
        found = [one for one in others if one.turn_id == before.turn_id]
    elif before.handle_id:
        found = [one for one in others if one.handle_id == before.handle_id]
    else:
        digests = (digest for digest in before.message_digests if digest)
        by_digest = ([one for one in others if one.message_digest == d] for d in digests)
        found = next((some for some in by_digest if some), [])
    sure = len(found) == 1 and not found[0].claim_id
    return found[0].handle_id if sure else ""
