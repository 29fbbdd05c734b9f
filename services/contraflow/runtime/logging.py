"""Logging set-up: one event a line, JSON unless a person watches.

Never log prompt text or token ids. Use ``log = structlog.get_logger()``, an event name in
snake_case, and keyword values.
"""

from __future__ import annotations

import logging
import sys
from typing import Literal, TextIO

import structlog

LogLevel = Literal["debug", "info", "warning", "error"]


def configure(component: str, level: LogLevel = "info", stream: TextIO = sys.stderr) -> None:
    """Send structlog and the standard library's warnings to ``stream``.

    ``component`` is a key of every event.
    """
    console = stream.isatty()
    # Plain tracebacks: structlog's rich ones print local variables, and with them prompt text.
    renderer = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if console
        else structlog.processors.JSONRenderer()
    )

    def name_component(
        _logger: object, _method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        return {"component": component, **event}

    shared: list[structlog.typing.Processor] = [
        name_component,
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if not console:
        shared.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(stream),
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                renderer,
            ],
            foreign_pre_chain=shared,
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
