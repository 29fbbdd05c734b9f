"""The engines of this node: which incarnations there are, and which one an id means."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import NoReturn

import structlog

from contraflow.agent.attachment import Attachment, HandleObserver, PullObserver
from contraflow.agent.codec import Introduction
from contraflow.agent.link import EngineLink
from contraflow.core.errors import EngineIdReused, EngineIncarnationStale, EngineNotAttached
from contraflow.runtime.clock import Clock

log = structlog.get_logger()

REMEMBERED = 256
"""Incarnations without a link that are remembered, to tell replaced from unknown."""

EXPIRY_SECONDS = 1.0
"""Handles whose lease has run out are dropped this often."""

Incarnation = tuple[str, str]
"""Engine id and boot nonce."""


class Engines:
    """All incarnations that have attached. Confined to the event loop.

    ``first_epoch`` must exceed every epoch of earlier agent processes on this node: wall-clock
    milliseconds at the start do, for no agent makes a thousand links a second.
    """

    def __init__(
        self,
        clock: Clock,
        first_epoch: int,
        observe_pull: PullObserver,
        observe_handle: HandleObserver,
        on_attached: Callable[[Attachment], None],
        on_detached: Callable[[Attachment], None],
        on_replaced: Callable[[Attachment], None],
    ) -> None:
        self._clock = clock
        self._epochs = count(first_epoch)
        self._observe_pull = observe_pull
        self._observe_handle = observe_handle
        self._on_attached = on_attached
        self._on_detached = on_detached
        self._on_replaced = on_replaced
        self._known: dict[Incarnation, Attachment] = {}  # the last linked one last
        self._reused: set[str] = set()
        self._replaced: set[Incarnation] = set()

    def attached(self) -> list[Attachment]:
        """Those with a live link, by engine id."""
        linked = [one for one in list(self._known.values()) if one.link is not None]
        return sorted(linked, key=lambda one: one.engine.engine_id)

    def find(self, engine_id: str) -> Attachment:
        """The latest incarnation under an id, with a live link.

        Raises EngineNotAttached, EngineIncarnationStale.
        """
        found = [one for (known_id, _), one in self._known.items() if known_id == engine_id]
        if not found:
            raise EngineNotAttached("no engine of this id has attached to this agent")
        for one in reversed(found):
            if one.link is not None and _incarnation(one) not in self._replaced:
                return one
        if all(_incarnation(one) in self._replaced for one in found):
            raise EngineIncarnationStale("a later incarnation has taken the engine's place")
        raise EngineNotAttached("the engine has no live link to this agent")

    def find_for_pull(self, engine_id: str) -> Attachment:
        """As ``find``, and its blocks may be read.

        Raises EngineIdReused too: peers may keep addresses under an id for an hour, so that
        which of its incarnations they would read is unknown, and stays so.
        """
        if engine_id in self._reused:
            raise EngineIdReused("the engine id was seen with another boot nonce: never pulled")
        return self.find(engine_id)

    def note_reuse(self, engine_id: str) -> None:
        """An id is in use with two boot nonces, here or elsewhere in the fleet."""
        if engine_id not in self._reused:
            self._reused.add(engine_id)
            log.warning("engine_id_reused", engine_id=engine_id)

    @contextmanager
    def attach(self, hello: Introduction) -> Iterator[tuple[Attachment, EngineLink]]:
        """A link of an engine, for as long as the context lasts."""
        attachment = self._incarnation_of(hello)
        link = EngineLink(next(self._epochs))
        attachment.linked(link, hello)
        self._on_attached(attachment)
        log.info(
            "engine_attached",
            engine_id=hello.engine.engine_id,
            role=hello.engine.role,
            endpoint=hello.engine.endpoint,
            dp_rank=hello.engine.dp_rank,
            epoch=link.epoch,
            handles=len(attachment.mirror),
        )
        try:
            yield attachment, link
        finally:
            if attachment.unlinked(link):
                log.info("engine_detached", engine_id=hello.engine.engine_id, epoch=link.epoch)
                self._on_detached(attachment)
                if _incarnation(attachment) in self._replaced:
                    self._end(attachment)

    async def keep_expiring(self) -> NoReturn:
        """Drop handles whose lease has run out, also of engines without a link."""
        while True:
            await self._clock.sleep(EXPIRY_SECONDS)
            for attachment in self._known.values():
                attachment.expire()

    def _incarnation_of(self, hello: Introduction) -> Attachment:
        engine = hello.engine
        key = (engine.engine_id, engine.boot_nonce)
        attachment = self._known.pop(key, None)
        if attachment is None:
            attachment = Attachment(engine, self._clock, self._observe_pull, self._observe_handle)
            self._forget_old()
        self._replaced.discard(key)
        for other in self._known.values():
            if other.engine.engine_id == engine.engine_id:
                self.note_reuse(engine.engine_id)
            elif _place(other) == (engine.endpoint, engine.dp_rank):
                self._replace(other)
        self._known[key] = attachment
        return attachment

    def _replace(self, old: Attachment) -> None:
        key = _incarnation(old)
        if key not in self._replaced:
            self._replaced.add(key)
            log.info("engine_replaced", engine_id=old.engine.engine_id)
            if old.link is None:
                self._end(old)

    def _end(self, old: Attachment) -> None:
        old.lose()
        self._on_replaced(old)

    def _forget_old(self) -> None:
        unlinked = [key for key, one in self._known.items() if one.link is None]
        for key in unlinked[: max(0, len(unlinked) - REMEMBERED)]:
            del self._known[key]
            self._replaced.discard(key)


def _incarnation(attachment: Attachment) -> Incarnation:
    return attachment.engine.engine_id, attachment.engine.boot_nonce


def _place(attachment: Attachment) -> tuple[str, int]:
    return attachment.engine.endpoint, attachment.engine.dp_rank
