"""Which retained handles an engine keeps, which it frees, and which it holds for longer.

Pure. Retained blocks are rent: a hard cap on them, the least recently used go first, and what
a conversation may come back for is renewed. That blocks stay free for requests is the engine's
own business: it can not wait for anybody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Protocol


class Tenure(Protocol):
    """What counts of a live handle. Instants are those of ``now``."""

    @property
    def handle_id(self) -> str: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def retained_at(self) -> float: ...
    @property
    def expires_at(self) -> float: ...
    @property
    def claimed(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Policy:
    """``budget_share``: most blocks of an engine that handles may hold, as a share of all.
    ``ttl``: the lease that a renewal gives. ``max_idle``: age from which a handle is renewed no
    more. Seconds."""

    budget_share: float
    ttl: float
    max_idle: float

    def is_due(self, handle: Tenure, now: float) -> bool:
        """Whether it has less than half of its lease left, and may be renewed."""
        return (
            not handle.claimed
            and handle.expires_at - now < self.ttl / 2
            and now - handle.retained_at < self.max_idle
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """Ids of the handles to free, oldest first, and of those to hold for longer."""

    release: tuple[str, ...] = ()
    renew: tuple[str, ...] = ()


def decide(
    handles: Iterable[Tenure],
    candidates: Iterable[Tenure],
    policy: Policy,
    *,
    held_blocks: int,
    num_blocks: int,
    draining: bool,
    emptying: bool = False,
    most_renewed: int,
    now: float,
) -> Decision:
    """For one engine of ``num_blocks`` blocks, of which ``handles``, oldest first, hold
    ``held_blocks``; those that may be due for renewal are among the ``candidates``.

    Frees the oldest unclaimed ones until the rest is within budget; all of them if the engine
    is ``emptying``. Renews the first ``most_renewed`` that are due; nothing while claims alone
    keep the engine over budget, nor while it drains. Of both, it looks at no more than it must.
    """
    over = held_blocks - (0 if emptying else int(num_blocks * policy.budget_share))
    release: dict[str, None] = {}
    if over > 0:
        for handle in handles:
            if handle.claimed:
                continue
            release[handle.handle_id] = None
            over -= handle.num_blocks
            if over <= 0:
                break
    if draining or over > 0:
        return Decision(tuple(release))
    due = (
        handle.handle_id
        for handle in candidates
        if policy.is_due(handle, now) and handle.handle_id not in release
    )
    return Decision(tuple(release), tuple(islice(due, most_renewed)))
