"""Applies the retention policy to the attached engines: on every change, and from time to time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn
from weakref import WeakKeyDictionary

import structlog

from contraflow.agent.attachment import Attachment
from contraflow.agent.mirror import MirroredHandle, ReleaseCause
from contraflow.core.errors import ContraflowError
from contraflow.core.handle import State
from contraflow.core.retention import Policy, Tenure, decide
from contraflow.runtime.clock import Clock

log = structlog.get_logger()

SETTLE_SECONDS = 0.05
"""Between a change and the pass for it: an engine tells of a new handle before it tells that
those it supersedes are gone, and both together may seem to exceed a budget."""

PASSES_IN_TTL = 16
"""Passes over all engines while one lease runs out."""


@dataclass(slots=True)
class _Books:
    """Of one engine: the handles that it has orders for."""

    releasing: set[str] = field(default_factory=set)
    renewing: set[str] = field(default_factory=set)


class Retention:
    """``run`` it; ``note`` every change of a handle. Confined to the event loop.

    An engine has no deadline for these orders: nobody waits for them, and none is repeated
    while an answer is due. ``observe_renewals`` gets how many handles were renewed, and how
    many were not.
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
        self._due: set[str] = set()  # engine ids
        self._wake = asyncio.Event()

    def note(self, handle: MirroredHandle) -> None:
        """A handle as it is now."""
        self._due.add(handle.engine_id)
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_passing())
            while True:
                await self._wake.wait()
                await self._clock.sleep(SETTLE_SECONDS)
                self._wake.clear()
                due, self._due = self._due, set()
                for attachment in self._attached():
                    if attachment.engine.engine_id in due:
                        self._pass(attachment, group)

    async def _keep_passing(self) -> NoReturn:
        while True:
            await self._clock.sleep(self._policy.ttl / PASSES_IN_TTL)
            self._due.update(one.engine.engine_id for one in self._attached())
            self._wake.set()

    def _pass(self, attachment: Attachment, group: asyncio.TaskGroup) -> None:
        books = self._books.setdefault(attachment, _Books())
        decision = decide(
            [
                Tenure(
                    one.handle_id,
                    one.num_blocks,
                    one.retained_at,
                    one.expires_at,
                    claimed=one.state is State.CLAIMED,
                )
                for one in attachment.mirror.live()
                if one.handle_id not in books.releasing
            ],
            self._policy,
            num_blocks=attachment.engine.num_blocks,
            draining=attachment.engine.draining,
            emptying=attachment.emptying,
            now=self._clock.now(),
        )
        if decision.release:
            books.releasing.update(decision.release)
            group.create_task(self._release(attachment, books, decision.release))
        if renew := [one for one in decision.renew if one not in books.renewing]:
            books.renewing.update(renew)
            group.create_task(self._renew(attachment, books, renew))

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


def _note_failure(event: str, attachment: Attachment, error: ContraflowError) -> None:
    log.warning(event, engine_id=attachment.engine.engine_id, reason=error.reason)
