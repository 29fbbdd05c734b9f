"""Applies the retention policy to the attached engines: on every change, and from time to time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn
from weakref import WeakKeyDictionary

import structlog

from contraflow.agent.attachment import ORDER_SIZE, Attachment
from contraflow.agent.mirror import HandleMirror, MirroredHandle, ReleaseCause
from contraflow.core.errors import ContraflowError
from contraflow.core.retention import Policy, decide
from contraflow.runtime.clock import Clock

log = structlog.get_logger()

SETTLE_SECONDS = 0.05
"""Between a change and the pass for it: an engine tells of a new handle before it tells that
those it supersedes are gone, and both together may seem to exceed a budget."""

PASSES_IN_TTL = 16
"""Passes over all engines while one lease runs out."""


@dataclass(slots=True)
class _Books:
    """Of one engine, by handle id: what it has orders for, and what may be due for renewal."""

    releasing: set[str] = field(default_factory=set)
    renewing: set[str] = field(default_factory=set)
    unseen: deque[str] = field(default_factory=deque)


class Retention:
    """``run`` it; ``note`` every change of a handle. Confined to the event loop.

    An engine has no deadline for these orders: nobody waits for them, and none is repeated
    while an answer is due. At most ORDER_SIZE handles are on their way to a longer lease at a
    time, however their orders are answered: one that a worker has lost must not keep all
    others waiting. ``observe_renewals`` gets how many handles were renewed, and how many were
    not.
    """

    def __init__(
        self,
        attached: Callable[[], Iterable[Attachment]],
        policy: Policy,
        clock: Clock,
        observe_renewals: Callable[[int, int], None],
    ) -> None:
        self._attached = attached
        self._policy = policy
        self._clock = clock
        self._observe_renewals = observe_renewals
        self._books: WeakKeyDictionary[Attachment, _Books] = WeakKeyDictionary()
        self._due: dict[str, list[str]] = {}  # engine id -> ids of handles that have changed
        self._wake = asyncio.Event()

    def note(self, handle: MirroredHandle) -> None:
        """A handle as it is now."""
        self._due.setdefault(handle.engine_id, []).append(handle.handle_id)
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_passing())
            while True:
                await self._wake.wait()
                await self._clock.sleep(SETTLE_SECONDS)
                self._wake.clear()
                due, self._due = self._due, {}
                for attachment in self._attached():
                    if (changed := due.get(attachment.engine.engine_id)) is not None:
                        self._books_of(attachment).unseen.extend(changed)
                        self._pass(attachment, group)

    async def _keep_passing(self) -> NoReturn:
        while True:
            await self._clock.sleep(self._policy.ttl / PASSES_IN_TTL)
            for one in self._attached():
                all_there_are = (handle.handle_id for handle in one.mirror.live())
                self._books_of(one).unseen = deque(all_there_are)
                self._want_pass(one.engine.engine_id)

    def _want_pass(self, engine_id: str) -> None:
        self._due.setdefault(engine_id, [])
        self._wake.set()

    def _books_of(self, attachment: Attachment) -> _Books:
        return self._books.setdefault(attachment, _Books())

    def _pass(self, attachment: Attachment, group: asyncio.TaskGroup) -> None:
        books, mirror = self._books_of(attachment), attachment.mirror
        is_due, now = self._policy.is_due, self._clock.now()
        leaving = [one for one in map(mirror.get, books.releasing) if one]
        renewing = [one for one in map(mirror.get, books.renewing) if one]
        decision = decide(
            (one for one in mirror.live() if one.handle_id not in books.releasing),
            self._candidates(mirror, books),
            self._policy,
            held_blocks=mirror.num_blocks - sum(one.num_blocks for one in leaving),
            num_blocks=attachment.engine.num_blocks,
            draining=attachment.engine.draining,
            emptying=attachment.emptying,
            most_renewed=max(0, ORDER_SIZE - sum(is_due(one, now) for one in renewing)),
            now=now,
        )
        if decision.release:
            books.releasing.update(decision.release)
            group.create_task(self._release(attachment, books, decision.release))
        if decision.renew:
            books.renewing.update(decision.renew)
            group.create_task(self._renew(attachment, books, decision.renew))

    @staticmethod
    def _candidates(mirror: HandleMirror, books: _Books) -> Iterator[MirroredHandle]:
        while books.unseen:
            handle = mirror.get(books.unseen.popleft())
            if handle is None or handle.handle_id in books.releasing:
                continue
            if handle.handle_id not in books.renewing:
                yield handle

    async def _release(
        self, attachment: Attachment, books: _Books, handle_ids: Sequence[str]
    ) -> None:
        cause = ReleaseCause.ORDERED if attachment.emptying else ReleaseCause.BUDGET
        try:
            released = await attachment.release(handle_ids, None, cause)
        except ContraflowError as error:
            _note_failure("handles_not_released", attachment, error)
        else:
            log.info(
                "handles_released",
                engine_id=attachment.engine.engine_id,
                handles=len(released),
                cause=cause,
            )
        finally:
            books.releasing.difference_update(handle_ids)

    async def _renew(
        self, attachment: Attachment, books: _Books, handle_ids: Sequence[str]
    ) -> None:
        try:
            renewed = await attachment.renew(handle_ids, self._policy.ttl)
        except ContraflowError as error:
            _note_failure("handles_not_renewed", attachment, error)
        else:
            self._observe_renewals(len(renewed), len(handle_ids) - len(renewed))
            log.info(
                "handles_renewed",
                engine_id=attachment.engine.engine_id,
                handles=len(renewed),
                ordered=len(handle_ids),
            )
        finally:
            books.renewing.difference_update(handle_ids)
            self._want_pass(attachment.engine.engine_id)


def _note_failure(event: str, attachment: Attachment, error: ContraflowError) -> None:
    log.warning(event, engine_id=attachment.engine.engine_id, reason=error.reason)
