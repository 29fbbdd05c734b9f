"""Which handle a turn has made useless that it did not read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


def outlived(
    handles: Iterable[Retained],
    tenant: str,
    turn_id: str,
    earlier_turn_id: str,
    earlier_digests: Sequence[str],
) -> str:
    """The handle of the turn that ``turn_id`` went on from, among those under the key of that
    turn; empty if none is surely it.

    It is surely the one of ``earlier_turn_id``, where that is known. Else it is the only one
    with the latest of ``earlier_digests`` (of messages up to a reply, the latest first) that
    any handle has: of two, one may be another branch's, or another conversation's.
    """
    others = [one for one in handles if one.tenant == tenant and one.turn_id != turn_id]
    if earlier_turn_id:
        found = [one for one in others if one.turn_id == earlier_turn_id]
    else:
        digests = (digest for digest in earlier_digests if digest)
        by_digest = ([one for one in others if one.message_digest == d] for d in digests)
        found = next((some for some in by_digest if some), [])
    return found[0].handle_id if len(found) == 1 else ""
