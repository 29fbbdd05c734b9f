"""Whatever a defect leaves behind in logs and with the event loop, while generated inputs run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import structlog

_DEFECTS = ("error", "critical", "exception")


class _Handler(logging.Handler):
    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        text = logging.Formatter().format(record)
        self._found.append(f"{record.name}: {text}")


@contextmanager
def no_complaints(
    loop: asyncio.AbstractEventLoop | None = None, allowed: tuple[str, ...] = ()
) -> Iterator[None]:
    """AssertionError if anything is logged as an error, or an exception reaches ``loop``,
    meanwhile; ``allowed`` are events of our own logs that are no defect."""
    found: list[str] = []

    def note(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if method in _DEFECTS and event.get("event") not in allowed:
            found.append(repr(structlog.processors.format_exc_info(logger, method, event)))
        raise structlog.DropEvent

    def caught(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        found.append(f"{context.get('message')}: {context.get('exception')!r}")

    handler = _Handler(found)
    before = structlog.get_config()["processors"]
    structlog.configure(processors=[note])
    logging.getLogger().addHandler(handler)
    if loop is not None:
        loop.set_exception_handler(caught)
    try:
        yield
    finally:
        if loop is not None:
            loop.set_exception_handler(None)
        logging.getLogger().removeHandler(handler)
        structlog.configure(processors=before)
    assert not found, "\n".join(found)
