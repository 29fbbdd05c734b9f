"""Which retained handles an engine keeps, which it frees, and which it holds for longer.

Pure. Retained blocks are rent: a hard cap on them, the least recently used go first, and what
a conversation may come back for is renewed. That blocks stay free for requests is the engine's
own business: it can not wait for anybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """``budget_share``: most blocks of an engine that handles may hold, as a share of all.
    ``ttl``: the lease that a renewal gives. ``max_idle``: age from which a handle is renewed no
    more. Seconds."""

    budget_share: float
    ttl: float
    max_idle: float


@dataclass(frozen=True, slots=True)
class Tenure:
    """What counts of a live handle. Instants are those of ``now``."""

    handle_id: str
    num_blocks: int
    retained_at: float
    expires_at: float
    claimed: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """Ids of the handles to free and of those to hold for longer, oldest first."""

    release: tuple[str, ...] = ()
    renew: tuple[str, ...] = ()


def decide(
    handles: Sequence[Tenure],
    policy: Policy,
    *,
    num_blocks: int,
    draining: bool,
    emptying: bool = False,
    now: float,
) -> Decision:
    """For one engine of ``num_blocks`` blocks; ``handles`` oldest first.

    Frees the oldest unclaimed ones until the rest is within budget; all of them if the engine
    is ``emptying``. Renews, at less than half of its lease, what is younger than ``max_idle``;
    nothing while claims alone keep the engine over budget, nor while it drains.
    """
    budget = 0 if emptying else int(num_blocks * policy.budget_share)
    over = sum(handle.num_blocks for handle in handles) - budget
    release: list[str] = []
    kept: list[Tenure] = []
    for handle in handles:
        if handle.claimed:
            continue
        if over > 0:
            release.append(handle.handle_id)
            over -= handle.num_blocks
        else:
            kept.append(handle)
    if draining or over > 0:
        return Decision(tuple(release))
    renew = [
        handle.handle_id
        for handle in kept
        if handle.expires_at - now < policy.ttl / 2 and now - handle.retained_at < policy.max_idle
    ]
    return Decision(tuple(release), tuple(renew))
