"""Keeps the attached engines in the directory, each by a task of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from contraflow.agent.attachment import Attachment
from contraflow.agent.registration import EngineRegistration

REMEMBERED = 256
"""Registrations of detached engines that can be continued."""


class Registrar:
    """Told of engines that come and go, inside the context of ``running``."""

    def __init__(self, new_registration: Callable[[Attachment], EngineRegistration]) -> None:
        self._new_registration = new_registration
        self._registrations: dict[Attachment, EngineRegistration] = {}
        self._tasks: dict[Attachment, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The tasks live in here; registrations are left to run out, for engines live on."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                yield
            finally:
                self._group = None
                for task in self._tasks.values():
                    task.cancel()

    def attached(self, attachment: Attachment) -> None:
        """Register and publish, or go on with it."""
        if self._group is not None and attachment not in self._tasks:
            registration = self._registrations.get(attachment)
            if registration is None:
                self._forget_old()
                registration = self._new_registration(attachment)
                self._registrations[attachment] = registration
            self._tasks[attachment] = self._group.create_task(registration.run())

    def detached(self, attachment: Attachment) -> None:
        """Renew no more: the lease runs out, unless the engine is back before."""
        if task := self._tasks.pop(attachment, None):
            task.cancel()

    def replaced(self, attachment: Attachment) -> None:
        """The engine will not come back: its records may go at once."""
        registration = self._registrations.get(attachment)
        if self._group is not None and registration is not None:
            self._group.create_task(registration.end())

    def _forget_old(self) -> None:
        idle = [one for one in self._registrations if one not in self._tasks]
        for attachment in idle[: max(0, len(idle) - REMEMBERED)]:
            del self._registrations[attachment]
